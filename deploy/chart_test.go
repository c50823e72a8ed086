package deploy

import (
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/matryer/is"
	monitoring "github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring/v1"
	"helm.sh/helm/v3/pkg/chart"
	"helm.sh/helm/v3/pkg/chart/loader"
	"helm.sh/helm/v3/pkg/chartutil"
	"helm.sh/helm/v3/pkg/engine"
	"helm.sh/helm/v3/pkg/lint"
	"helm.sh/helm/v3/pkg/lint/support"
	apps "k8s.io/api/apps/v1"
	autoscaling "k8s.io/api/autoscaling/v2"
	batch "k8s.io/api/batch/v1"
	core "k8s.io/api/core/v1"
	networking "k8s.io/api/networking/v1"
	policy "k8s.io/api/policy/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/trapeze-run/trapeze/api"
	"github.com/trapeze-run/trapeze/runner"
)

// helmChart is loaded only once, because Helm logs every symbolic link that it follows.
var helmChart = sync.OnceValues(func() (*chart.Chart, error) { return loader.Load("helm") })

// render renders the chart with the values and decodes it strictly.
func render(values map[string]any) (release, error) {
	chart, err := helmChart()
	if err != nil {
		return release{}, err
	}
	all, err := chartutil.ToRenderValues(chart, values, chartutil.ReleaseOptions{Name: "shop", Namespace: "jobs", IsInstall: true}, chartutil.DefaultCapabilities)
	if err != nil {
		return release{}, err
	}
	files, err := engine.Engine{Strict: true}.Render(chart, all)
	if err != nil {
		return release{}, err
	}
	r := release{values: all["Values"].(chartutil.Values), pods: map[string]core.PodTemplateSpec{}}
	for name, text := range files {
		if filepath.Ext(name) != ".yaml" {
			continue
		}
		objects, err := decode(text)
		if err != nil {
			return r, fmt.Errorf("%s: %w", name, err)
		}
		r.objects = append(r.objects, objects...)
	}
	for _, d := range of[apps.Deployment](r) {
		r.pods[d.Name] = d.Spec.Template
	}
	for _, j := range of[batch.Job](r) {
		r.pods[j.Name] = j.Spec.Template
	}
	return r, nil
}

// release is a rendered chart.
type release struct {
	values  chartutil.Values
	objects []any
	pods    map[string]core.PodTemplateSpec // by the name of the Deployment or Job
}

// of returns the release's objects of one type.
func of[T any](r release) (found []*T) {
	for _, object := range r.objects {
		if one, ok := object.(*T); ok {
			found = append(found, one)
		}
	}
	return found
}

// value returns one of the chart's values, such as tls.secret.
func (r release) value(t *testing.T, path string) any {
	t.Helper()
	v, err := r.values.PathValue(path)
	if err != nil {
		t.Fatal(err)
	}
	return v
}

// releases calls check for the chart rendered with its default values and with each values file in testdata.
func releases(t *testing.T, check func(t *testing.T, r release)) {
	files, err := filepath.Glob("testdata/*.yaml")
	if err != nil || len(files) < 3 {
		t.Fatal(files, err)
	}
	for _, file := range append(files, "helm/values.yaml") {
		t.Run(file, func(t *testing.T) {
			is := is.New(t)
			values, err := chartutil.ReadValuesFile(file)
			is.NoErr(err)
			r, err := render(values)
			is.NoErr(err)
			check(t, r)
		})
	}
}

func TestPodsAreHardened(t *testing.T) {
	releases(t, func(t *testing.T, r release) {
		is := is.New(t)
		is.True(len(r.pods) > 0)
		for _, pod := range r.pods {
			s := pod.Spec
			is.True(!*s.AutomountServiceAccountToken)
			is.True(s.EnableServiceLinks != nil && !*s.EnableServiceLinks)
			is.True(*s.SecurityContext.RunAsNonRoot)
			is.Equal(*s.SecurityContext.RunAsUser, int64(65532)) // the image's user
			is.Equal(s.SecurityContext.SeccompProfile.Type, core.SeccompProfileTypeRuntimeDefault)
			for _, c := range s.Containers {
				is.True(!c.Resources.Requests.Cpu().IsZero() && !c.Resources.Limits.Cpu().IsZero()) // the limit sets GOMAXPROCS
				is.True(*c.SecurityContext.ReadOnlyRootFilesystem)
				is.True(!*c.SecurityContext.AllowPrivilegeEscalation)
				is.Equal(c.SecurityContext.Capabilities.Drop, []core.Capability{"ALL"})
			}
		}
	})
}

func TestChartVariablesAndSecrets(t *testing.T) {
	releases(t, func(t *testing.T, r release) {
		is := is.New(t)
		for name, pod := range r.pods {
			plain, references := map[string]string{}, []string{}
			for _, e := range pod.Spec.Containers[0].Env {
				if e.ValueFrom == nil {
					_, twice := plain[e.Name]
					is.True(!twice)
					plain[e.Name] = e.Value
					continue
				}
				is.True(e.ValueFrom.SecretKeyRef != nil)
				references = append(references, e.Name)
			}
			checkEnvironment(t, plain, references...)
			accepted(t, plain)
			is.Equal(slices.Contains(references, "DATABASE_URL"), !strings.HasSuffix(name, "-worker")) // workers have no database
			is.Equal(slices.Contains(references, "TRAPEZE_TOKEN"), strings.HasSuffix(name, "-worker"))
			for _, file := range []string{"TRAPEZE_TOKENS_FILE", "TRAPEZE_TLS_CERT", "TRAPEZE_TLS_KEY"} {
				is.True(plain[file] == "" || mounted(pod.Spec, plain[file])) // the file must exist
			}
			for _, arg := range pod.Spec.Containers[0].Args {
				if ca, ok := strings.CutPrefix(arg, "--ca="); ok {
					is.True(mounted(pod.Spec, ca))
				}
			}
		}
	})
}

// mounted reports whether the file comes from a read-only secret volume.
func mounted(s core.PodSpec, file string) bool {
	for _, m := range s.Containers[0].VolumeMounts {
		for _, v := range s.Volumes {
			if m.Name != v.Name || m.MountPath != filepath.Dir(file) || !m.ReadOnly || v.Secret == nil {
				continue
			}
			items := v.Secret.Items
			return len(items) == 0 || slices.ContainsFunc(items, func(k core.KeyToPath) bool { return k.Path == filepath.Base(file) })
		}
	}
	return false
}

// A pod may take its grace period plus a few seconds to exit, in addition to the time that Services need to remove it.
func TestChartGracePeriods(t *testing.T) {
	releases(t, func(t *testing.T, r release) {
		is := is.New(t)
		for _, d := range of[apps.Deployment](r) {
			s := d.Spec.Template.Spec
			before := time.Duration(0)
			if hook := s.Containers[0].Lifecycle; hook != nil {
				before = time.Duration(hook.PreStop.Sleep.Seconds) * time.Second
			}
			grace := seconds(t, variable(s, "TRAPEZE_SHUTDOWN_GRACE"))
			is.True(time.Duration(*s.TerminationGracePeriodSeconds)*time.Second >= before+grace+margin)
			is.Equal(grace, time.Duration(r.value(t, "shutdownGraceSeconds").(float64))*time.Second)
		}
	})
}

func variable(s core.PodSpec, name string) string {
	for _, e := range s.Containers[0].Env {
		if e.Name == name {
			return e.Value
		}
	}
	return ""
}

// serves returns a function that reports whether the API has a route. No database is needed, because only the routing is tested.
func serves(t *testing.T) func(prefix, path string) bool {
	t.Helper()
	is := is.New(t)
	pool, err := pgxpool.New(t.Context(), "postgres://nowhere.invalid/")
	is.NoErr(err)
	t.Cleanup(pool.Close)
	r, err := runner.New(pool, runner.Options{})
	is.NoErr(err)
	t.Cleanup(r.Close)
	handler := api.Handler(r, api.Options{InsecureAllowAll: true})
	return func(prefix, path string) bool {
		route, ok := strings.CutPrefix(path, prefix)
		request := httptest.NewRequest(http.MethodGet, "http://127.0.0.1"+route, nil)
		request.RemoteAddr = "127.0.0.1:1"
		response := httptest.NewRecorder()
		handler.ServeHTTP(response, request)
		return ok && response.Code != http.StatusNotFound
	}
}

func TestChartProbeAndScrapeRoutes(t *testing.T) {
	route := serves(t)
	if route("", "/livez") {
		t.Fatal("every path is a route")
	}
	releases(t, func(t *testing.T, r release) {
		is := is.New(t)
		prefix := r.value(t, "web.prefix").(string)
		secure := r.value(t, "tls.secret").(string) != ""
		for name, pod := range r.pods {
			c := pod.Spec.Containers[0]
			if !strings.HasSuffix(name, "-web") {
				is.True(c.LivenessProbe == nil && c.ReadinessProbe == nil) // these pods serve no HTTP
				continue
			}
			is.Equal(c.LivenessProbe.HTTPGet.Path, prefix+"/healthz") // not /readyz, which depends on the database
			is.Equal(c.ReadinessProbe.HTTPGet.Path, prefix+"/readyz")
			for _, probe := range []*core.Probe{c.LivenessProbe, c.ReadinessProbe} {
				is.True(route(prefix, probe.HTTPGet.Path))
				is.Equal(probe.HTTPGet.Scheme == core.URISchemeHTTPS, secure)
				is.Equal(probe.HTTPGet.Port.StrVal, c.Ports[0].Name)
			}
			_, port, err := net.SplitHostPort(variable(pod.Spec, "TRAPEZE_HTTP_ADDR"))
			is.NoErr(err)
			is.Equal(port, fmt.Sprint(c.Ports[0].ContainerPort))
		}
		for _, m := range of[monitoring.ServiceMonitor](r) {
			is.True(route(prefix, m.Spec.Endpoints[0].Path))
			is.Equal(m.Spec.Endpoints[0].Port, of[core.Service](r)[0].Spec.Ports[0].Name)
			is.Equal(m.Spec.Endpoints[0].Scheme != nil && m.Spec.Endpoints[0].Scheme.String() == "https", secure)
		}
	})
}

// selected returns the names of the pods that a selector matches.
func selected(t *testing.T, r release, s *meta.LabelSelector) (names []string) {
	t.Helper()
	selector, err := meta.LabelSelectorAsSelector(s)
	if err != nil {
		t.Fatal(err)
	}
	for name, pod := range r.pods {
		if selector.Matches(labels.Set(pod.Labels)) {
			names = append(names, strings.TrimPrefix(name, "shop-"))
		}
	}
	slices.Sort(names)
	return names
}

func TestChartSelectors(t *testing.T) {
	releases(t, func(t *testing.T, r release) {
		is := is.New(t)
		for _, d := range of[apps.Deployment](r) {
			is.Equal(selected(t, r, d.Spec.Selector), []string{strings.TrimPrefix(d.Name, "shop-")})
			for _, spread := range d.Spec.Template.Spec.TopologySpreadConstraints {
				is.Equal(selected(t, r, spread.LabelSelector), []string{"web"})
			}
		}
		for _, p := range of[policy.PodDisruptionBudget](r) {
			is.Equal(selected(t, r, p.Spec.Selector), []string{strings.TrimPrefix(p.Name, "shop-")})
		}
		service := of[core.Service](r)[0]
		is.Equal(selected(t, r, &meta.LabelSelector{MatchLabels: service.Spec.Selector}), []string{"web"})
		is.Equal(service.Spec.Ports[0].TargetPort.StrVal, r.pods["shop-web"].Spec.Containers[0].Ports[0].Name)
		for _, m := range of[monitoring.ServiceMonitor](r) {
			selector, err := meta.LabelSelectorAsSelector(&m.Spec.Selector)
			is.NoErr(err)
			is.True(selector.Matches(labels.Set(service.Labels)))
		}
		for _, n := range of[networking.NetworkPolicy](r) {
			is.Equal(len(selected(t, r, &n.Spec.PodSelector)), len(r.pods)) // includes the migration pods
			is.Equal(n.Spec.PolicyTypes, []networking.PolicyType{"Ingress", "Egress"})
			for _, rule := range n.Spec.Ingress {
				is.True(len(rule.From) > 0) // an empty list would allow everyone
				is.Equal(rule.Ports[0].Port.StrVal, r.pods["shop-web"].Spec.Containers[0].Ports[0].Name)
			}
		}
	})
}

// Every command in the chart must exist and accept the flags that the chart passes.
func TestArgumentsAreCommands(t *testing.T) {
	commands := read(t, "../docs/reference-commands.md")
	releases(t, func(t *testing.T, r release) {
		for name, pod := range r.pods {
			words, flags := []string{"trapeze"}, []string{}
			for _, arg := range pod.Spec.Containers[0].Args {
				if strings.HasPrefix(arg, "--") {
					flag, _, _ := strings.Cut(arg, "=")
					flags = append(flags, flag)
					continue
				}
				words = append(words, arg)
			}
			_, section, ok := strings.Cut(commands, "\n## "+strings.Join(words, " ")+"\n")
			section, _, _ = strings.Cut(section, "\n## ")
			if !ok {
				t.Errorf("%s: no command %q", name, words)
			}
			for _, flag := range flags {
				if !strings.Contains(section, "`"+flag+"`") {
					t.Errorf("%s: no flag %s of %q", name, flag, words)
				}
			}
		}
	})
}

func TestChartMigrationOrder(t *testing.T) {
	releases(t, func(t *testing.T, r release) {
		is := is.New(t)
		web := r.pods["shop-web"].Spec.Containers[0]
		jobs := of[batch.Job](r)
		is.Equal(len(jobs) == 1, slices.Contains(web.Args, "--no-migrate")) // either Helm migrates or each pod does
		for _, j := range jobs {
			is.Equal(j.Annotations["helm.sh/hook"], "pre-install,pre-upgrade")
			is.Equal(j.Spec.Template.Spec.Containers[0].Image, web.Image)
			is.Equal(j.Spec.Template.Spec.RestartPolicy, core.RestartPolicyNever)
		}
	})
}

// usesMetrics checks that all metrics named in a text exist.
func usesMetrics(t *testing.T, text string) {
	t.Helper()
	known, found := column(t, "reference-metrics.md"), regexp.MustCompile(`\btrapeze_[a-z_]+`).FindAllString(text, -1)
	if len(found) == 0 {
		t.Errorf("no metric in %q", text)
	}
	for _, name := range found {
		histogram := regexp.MustCompile(`_(bucket|sum|count)$`).ReplaceAllString(name, "")
		if known[name] == "" && known[histogram] != "histogram" {
			t.Errorf("the metric %s does not exist", name)
		}
	}
}

func TestChartAutoscalerMetric(t *testing.T) {
	releases(t, func(t *testing.T, r release) {
		is := is.New(t)
		var scaled []string
		for _, s := range of[ScaledObject](r) {
			scaled = append(scaled, s.Spec.ScaleTargetRef.Name)
			is.True(s.Spec.MinReplicaCount >= 1 && s.Spec.MaxReplicaCount > s.Spec.MinReplicaCount) // with no pods, no metric would be exported
			for _, trigger := range s.Spec.Triggers {
				is.Equal(trigger.Type, "prometheus")
				is.Equal(trigger.MetricType, autoscaling.ValueMetricType)
				is.True(regexp.MustCompile(`^max\(trapeze_lane_oldest_seconds\{namespace="jobs", lane="\w+"}\)$`).MatchString(trigger.Metadata["query"]))
				is.True(trigger.Metadata["threshold"] != "" && trigger.Metadata["serverAddress"] != "")
				usesMetrics(t, trigger.Metadata["query"])
			}
			is.Equal(len(s.Spec.Triggers), 2)
		}
		for _, h := range of[autoscaling.HorizontalPodAutoscaler](r) {
			scaled = append(scaled, h.Spec.ScaleTargetRef.Name)
			for _, m := range h.Spec.Metrics {
				usesMetrics(t, m.External.Metric.Name)
				is.Equal(m.External.Metric.Selector.MatchLabels["lane"], "render")
				is.Equal(m.External.Target.Value.String(), "60")
			}
		}
		for _, d := range of[apps.Deployment](r) {
			is.Equal(d.Spec.Replicas == nil, slices.Contains(scaled, d.Name)) // an upgrade must not reset the number of pods
			scaled = slices.DeleteFunc(scaled, func(name string) bool { return name == d.Name })
		}
		is.Equal(len(scaled), 0) // every scaled Deployment exists
	})
}

func TestChartDashboardAndAlerts(t *testing.T) {
	is := is.New(t)
	values, err := chartutil.ReadValuesFile("testdata/keda.yaml")
	is.NoErr(err)
	r, err := render(values)
	is.NoErr(err)
	maps, rules := of[core.ConfigMap](r), of[monitoring.PrometheusRule](r)
	is.Equal(len(maps), 1)
	is.Equal(maps[0].Labels["grafana_dashboard"], "1")
	is.Equal(maps[0].Data["trapeze.json"], read(t, "../docs/grafana/trapeze.json"))
	usesMetrics(t, maps[0].Data["trapeze.json"])
	is.Equal(len(rules), 1)
	is.True(len(rules[0].Spec.Groups[0].Rules) > 5)
	for _, rule := range rules[0].Spec.Groups[0].Rules {
		usesMetrics(t, rule.Expr.String())
	}
}

func TestHelmFindsNoFault(t *testing.T) {
	found := lint.All("helm", map[string]any{}, "jobs", true)
	for _, m := range found.Messages {
		if m.Severity >= support.WarningSev {
			t.Error(m)
		}
	}
}

func TestChartInvalidValues(t *testing.T) {
	for want, values := range map[string]map[string]any{
		"worker.enabled needs tls.secret": {"worker": map[string]any{"enabled": true}},
		"want keda or hpa":                {"autoscaling": map[string]any{"type": "vpa"}},
		"want web, or worker with":        {"autoscaling": map[string]any{"type": "hpa", "target": "worker"}},
	} {
		_, err := render(values)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %s", err, want)
		}
	}
}
