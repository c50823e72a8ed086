package deploy

import (
	"encoding/json"
	"fmt"
	"regexp"
	"strings"
	"testing"

	monitoring "github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring/v1"
	apps "k8s.io/api/apps/v1"
	autoscaling "k8s.io/api/autoscaling/v2"
	batch "k8s.io/api/batch/v1"
	core "k8s.io/api/core/v1"
	networking "k8s.io/api/networking/v1"
	policy "k8s.io/api/policy/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	strict "sigs.k8s.io/json"
	"sigs.k8s.io/yaml"
)

// ScaledObject has the fields of KEDA's keda.sh/v1alpha1 that the chart uses (apis/keda/v1alpha1/scaledobject_types.go of KEDA 2.18).
// KEDA's own module is not used, because it depends on all of KEDA's scalers.
type ScaledObject struct {
	meta.TypeMeta   `json:",inline"`
	meta.ObjectMeta `json:"metadata"`
	Spec            struct {
		ScaleTargetRef struct {
			Name string `json:"name"`
		} `json:"scaleTargetRef"`
		MinReplicaCount int32 `json:"minReplicaCount"`
		MaxReplicaCount int32 `json:"maxReplicaCount"`
		Advanced        struct {
			HorizontalPodAutoscalerConfig struct {
				Behavior autoscaling.HorizontalPodAutoscalerBehavior `json:"behavior"`
			} `json:"horizontalPodAutoscalerConfig"`
		} `json:"advanced"`
		Triggers []struct {
			Type       string                       `json:"type"`
			MetricType autoscaling.MetricTargetType `json:"metricType"`
			Metadata   map[string]string            `json:"metadata"`
		} `json:"triggers"`
	} `json:"spec"`
}

// kinds maps each API version and kind that the chart may contain to a function that creates a value of its type.
var kinds = map[string]func() any{
	"apps/v1 Deployment":                      func() any { return new(apps.Deployment) },
	"autoscaling/v2 HorizontalPodAutoscaler":  func() any { return new(autoscaling.HorizontalPodAutoscaler) },
	"batch/v1 Job":                            func() any { return new(batch.Job) },
	"keda.sh/v1alpha1 ScaledObject":           func() any { return new(ScaledObject) },
	"monitoring.coreos.com/v1 PrometheusRule": func() any { return new(monitoring.PrometheusRule) },
	"monitoring.coreos.com/v1 ServiceMonitor": func() any { return new(monitoring.ServiceMonitor) },
	"networking.k8s.io/v1 NetworkPolicy":      func() any { return new(networking.NetworkPolicy) },
	"policy/v1 PodDisruptionBudget":           func() any { return new(policy.PodDisruptionBudget) },
	"v1 ConfigMap":                            func() any { return new(core.ConfigMap) },
	"v1 Service":                              func() any { return new(core.Service) },
}

// decode decodes the documents of a manifest into the types of the Kubernetes API. It rejects unknown and duplicate fields, unknown kinds,
// and field names in the wrong case.
func decode(manifest string) (objects []any, err error) {
	for _, document := range regexp.MustCompile(`(?m)^---\s*$`).Split(manifest, -1) {
		if strings.TrimSpace(document) == "" {
			continue
		}
		text, err := yaml.YAMLToJSONStrict([]byte(document))
		if err != nil {
			return nil, fmt.Errorf("%w in:\n%s", err, document)
		}
		if string(text) == "null" { // only comments
			continue
		}
		var kind meta.TypeMeta
		if err := json.Unmarshal(text, &kind); err != nil {
			return nil, err
		}
		create, ok := kinds[kind.APIVersion+" "+kind.Kind]
		if !ok {
			return nil, fmt.Errorf("unknown kind %s %s", kind.APIVersion, kind.Kind)
		}
		object := create()
		wrong, err := strict.UnmarshalStrict(text, object)
		if err == nil && len(wrong) > 0 {
			err = wrong[0]
		}
		if err != nil {
			return nil, fmt.Errorf("%s: %w in:\n%s", kind.Kind, err, document)
		}
		objects = append(objects, object)
	}
	return objects, nil
}

func TestManifestUnknownFieldsAndKinds(t *testing.T) {
	for name, manifest := range map[string]string{
		"unknown field":   "apiVersion: v1\nkind: Service\nspec: {selectors: {}}",
		"wrong case":      "apiVersion: v1\nkind: Service\nspec: {Selector: {}}",
		"duplicate field": "apiVersion: v1\nkind: Service\nkind: Service",
		"wrong type":      "apiVersion: v1\nkind: ConfigMap\ndata: {a: 1}",
		"unknown kind":    "apiVersion: v1\nkind: Secret",
	} {
		if _, err := decode(manifest); err == nil {
			t.Errorf("%s is accepted", name)
		}
	}
}
