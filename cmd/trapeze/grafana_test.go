package main

import (
	"encoding/json"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/matryer/is"
	"go.yaml.in/yaml/v3"

	"github.com/trapeze-run/trapeze/internal/pgtest"
	"github.com/trapeze-run/trapeze/runner"
	"github.com/trapeze-run/trapeze/runner/metrics"
)

const (
	dashboardFile = "../../docs/grafana/trapeze.json"
	alertsFile    = "../../docs/grafana/alerts.yml"
)

// allMetrics returns the labels of all metrics by metric name.
func allMetrics(t *testing.T) map[string][]string {
	t.Helper()
	r, err := runner.New(pgtest.Pool(t), runner.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	return described(t, metrics.Collector(r))
}

type (
	dashboard struct {
		Title, UID string
		Panels     []struct {
			ID                       int
			Type, Title, Description string
			Datasource               struct{ UID string }
			GridPos                  struct{ X, Y, W, H int }
			Targets                  []struct {
				Expr       string
				Datasource struct{ UID string }
			}
		}
		Templating struct {
			List []struct{ Name, Type, Definition string }
		}
	}
	alerts struct {
		Groups []struct {
			Name  string
			Rules []struct {
				Alert, Expr, For string
				Labels           map[string]string
				Annotations      map[string]string
			}
		}
	}
)

func TestGrafanaDashboardMetrics(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	var d dashboard
	is.NoErr(json.Unmarshal([]byte(read(t, dashboardFile)), &d))
	is.True(d.Title != "" && d.UID != "") // required to import and identify the dashboard
	is.Equal(d.Templating.List[0].Type, "datasource")
	known, used, ids := allMetrics(t), map[string]bool{}, map[int]bool{}
	for _, v := range d.Templating.List[1:] {
		asks(t, v.Definition, known, used)
	}
	clear(used)
	for _, p := range d.Panels {
		is.True(!ids[p.ID]) // panel IDs are unique
		ids[p.ID] = true
		is.True(p.GridPos.X+p.GridPos.W <= 24) // the panel fits the width of the page
		if p.Type == "row" {
			continue
		}
		is.True(p.Title != "" && p.Description != "" && len(p.Targets) > 0) // every panel has a title and a description
		is.Equal(p.Datasource.UID, "${datasource}")                         // chosen by the user who imports the dashboard
		for _, target := range p.Targets {
			is.Equal(target.Datasource.UID, "${datasource}")
			asks(t, target.Expr, known, used)
		}
	}
	for name := range known {
		if !used[name] {
			t.Errorf("%s is on no panel", name)
		}
	}
}

func TestGrafanaAlertMetrics(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	var a alerts
	decoder := yaml.NewDecoder(strings.NewReader(read(t, alertsFile)))
	decoder.KnownFields(true)
	is.NoErr(decoder.Decode(&a)) // contains no field that Prometheus would reject
	known, used := allMetrics(t), map[string]bool{}
	for _, rule := range a.Groups[0].Rules {
		asks(t, rule.Expr, known, used)
		is.True(rule.Labels["severity"] != "")
		is.True(rule.Annotations["summary"] != "" && rule.Annotations["description"] != "") // these state the problem and the remedy
	}
	for _, name := range []string{"trapeze_lane_oldest_seconds", "trapeze_jobs_recovered_total", "trapeze_stuck_handlers", "trapeze_pods", "trapeze_jobs_finished_total"} {
		is.True(used[name]) // the most important metrics have an alert
	}
}

var (
	metricName = regexp.MustCompile(`\b(trapeze_\w+)(\{[^}]*\})?`)
	labelName  = regexp.MustCompile(`(\w+)\s*(?:=~|!~|!=|=)`)
	grouping   = regexp.MustCompile(`\bby \(([^)]*)\)`)
)

// asks checks that the metrics and labels in an expression exist, and marks the metrics as used.
func asks(t *testing.T, expr string, known map[string][]string, used map[string]bool) {
	t.Helper()
	if strings.Count(expr, "(") != strings.Count(expr, ")") {
		t.Errorf("%s: brackets are left open", expr)
	}
	labels := []string{"job", "instance"}
	for _, found := range metricName.FindAllStringSubmatch(expr, -1) {
		name := found[1]
		if plain, ok := strings.CutSuffix(name, "_bucket"); ok {
			name, labels = plain, append(labels, "le")
		}
		own, ok := known[name]
		if !ok {
			t.Errorf("%s: no metric %s", expr, name)
		}
		used[name], labels = true, append(labels, own...)
		for _, label := range labelName.FindAllStringSubmatch(found[2], -1) {
			if !slices.Contains(labels, label[1]) {
				t.Errorf("%s: %s has no label %s", expr, name, label[1])
			}
		}
	}
	for _, by := range grouping.FindAllStringSubmatch(expr, -1) {
		for label := range strings.SplitSeq(by[1], ", ") {
			if !slices.Contains(labels, label) {
				t.Errorf("%s: nothing has a label %s", expr, label)
			}
		}
	}
}
