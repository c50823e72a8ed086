package main

import (
	"flag"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/labstack/echo/v4"
	"github.com/matryer/is"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/trapeze-run/trapeze/api"
	"github.com/trapeze-run/trapeze/internal/access"
	"github.com/trapeze-run/trapeze/internal/cli"
	"github.com/trapeze-run/trapeze/internal/failures"
	"github.com/trapeze-run/trapeze/internal/pgtest"
	"github.com/trapeze-run/trapeze/job"
	"github.com/trapeze-run/trapeze/runner"
)

var update = flag.Bool("update", false, "rewrite the generated pages")

func TestMain(m *testing.M) { pgtest.Main(m) }

const referenceFile = "../../docs/reference.md"

func TestReferenceListsEveryExitCode(t *testing.T) {
	t.Parallel()
	var codes []string
	for _, code := range []int{cli.CodeOK, cli.CodeRefused, cli.CodeUsage, cli.CodeUnavailable, cli.CodeUnknown} {
		codes = append(codes, strconv.Itoa(code))
	}
	same(t, "exit codes", names(t, "### Exit codes", "code"), codes)
}

func TestReferenceListsEveryRoute(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	r, err := runner.New(pgtest.Pool(t), runner.Options{})
	is.NoErr(err)
	defer r.Close()
	e := echo.New()
	api.Mount(e.Group(""), r, api.Options{InsecureAllowAll: true})
	var routes []string
	for _, route := range e.Routes() {
		if route.Method != echo.RouteNotFound && !strings.HasSuffix(route.Path, "/") { // a path with a slash at its end is rejected
			routes = append(routes, route.Method+" "+route.Path)
		}
	}
	documented := names(t, "## HTTP", "route")
	for _, heading := range regexp.MustCompile(`(?m)^## ([A-Z]+ /\S*)$`).FindAllStringSubmatch(read(t, "../../docs/reference-http.md"), -1) {
		documented = append(documented, heading[1])
	}
	same(t, "routes", documented, routes)
}

// described returns the labels of a collector's metrics by metric name.
func described(t *testing.T, c prometheus.Collector) map[string][]string {
	t.Helper()
	all := make(chan *prometheus.Desc)
	go func() {
		c.Describe(all)
		close(all)
	}()
	parts, found := regexp.MustCompile(`fqName: "(\w+)".*variableLabels: \{([^}]*)\}`), map[string][]string{}
	for one := range all {
		match := parts.FindStringSubmatch(one.String())
		if match == nil {
			t.Fatalf("invalid metric description: %s", one)
		}
		found[match[1]] = strings.FieldsFunc(match[2], func(c rune) bool { return c == ',' })
	}
	return found
}

func TestReferenceListsEveryErrorCode(t *testing.T) {
	t.Parallel()
	const literal = `(?:Code: |http\.Status\w+, )"([a-z_]+)"`
	codes := slices.Concat(literals(t, "api/*.go", literal), literals(t, "api/problem.go", `return "([a-z_]+)"`))
	same(t, "error codes", names(t, "### Error codes", "code"), codes)
}

func TestReferenceFormatFields(t *testing.T) {
	t.Parallel()
	types := map[string]any{
		"progress": job.Progress{}, "pod": job.Pod{}, "lane": job.LaneUse{}, "settings": job.Lane{}, "change": job.LaneChanged{},
		"schedule": job.ScheduleUse{}, "setting": job.ScheduleSetting{}, "set": job.ScheduleChanged{}, "fire": job.Occurrence{}, "retention": job.Retention{}, "kept": job.RetentionChanged{}, "preview": job.SchedulePreview{},
		"kind": job.KindUse{}, "handler": job.KindHandler{}, "limits": job.KindLimits{}, "group": failures.Group{}, "member": failures.Job{}, "quiet": job.DrainResult{}, "queue state": job.QueueState{}, "closure": job.Closure{}, "stack": job.Stack{}, "slot": job.Slot{}, "ready": cli.ReadyLine{},
		"stats": job.Stats{}, "numbers": job.StatsOf{}, "interval": job.StatsInterval{},
	}
	for _, row := range table(t, "## Formats", "object") {
		name, _, _ := strings.Cut(row[0], ":")
		if types[name] == nil {
			t.Errorf("the reference has a format %q that this test does not know", name)
			continue
		}
		same(t, "fields of a "+name, spans(row[1]), fieldsOf(reflect.TypeOf(types[name])))
		delete(types, name)
	}
	routes := read(t, "../../docs/reference-http.md")
	for name, format := range types { // the page of routes shows all fields of the others
		fields := slices.Sorted(slices.Values(fieldsOf(reflect.TypeOf(format))))
		if !strings.Contains(routes, "{"+strings.Join(fields, ", ")+"}") {
			t.Errorf("the reference lacks the format %q", name)
		}
	}
}

// fieldsOf returns the JSON names of a type's fields, including embedded fields.
func fieldsOf(t reflect.Type) (fields []string) {
	for field := range t.Fields() {
		if field.Anonymous {
			fields = append(fields, fieldsOf(field.Type)...)
			continue
		}
		tag, _, _ := strings.Cut(field.Tag.Get("json"), ",")
		fields = append(fields, tag)
	}
	return fields
}

func TestReferenceStatesReasonsEvents(t *testing.T) {
	t.Parallel()
	const heading = "## States, reasons, events"
	var states []string
	const named = `(?:'|\tevent :?= ")((?:job|pod|lane|queue_state|schedule|retention|limit)\.[a-z_]+)['"]`
	events := append(literals(t, "internal/store/*.go", named), literals(t, "internal/store/*/*.go", named)...)
	events = append(events, literals(t, "migrations/*_pipelines.sql", named)...)
	events = append(events, literals(t, "migrations/*_enqueue.sql", named)...)
	for _, state := range job.States() {
		states = append(states, string(state))
		if state.Terminal() {
			events = append(events, "job."+string(state)) // finish.go composes these names, so they do not occur as literals
		}
	}
	same(t, "states", names(t, heading, "state"), states)
	reasons := literals(t, "job/state.go", `Reason = +"([a-z_]+)"`)
	reasons = append(reasons, literals(t, "migrations/*_pipelines.sql", `'([a-z_]+)' end as reason`)...)
	why := literals(t, "migrations/*_jobs.sql", `why in \(('[^)]+')\)\),`) // the reasons why a job is parked
	reasons = append(reasons, strings.Split(strings.Trim(why[0], "'"), "', '")...)
	same(t, "reasons", names(t, heading, "reason"), reasons)
	same(t, "events", names(t, heading, "event"), events)
	var classes []string
	for _, class := range job.ErrorClasses() {
		classes = append(classes, string(class))
	}
	same(t, "error classes", names(t, heading, "error class"), classes)
}

func TestReferenceListsEveryKind(t *testing.T) {
	t.Parallel()
	kind := `Kind\(\) string +\{ return "([a-z_.]+)" \}`
	rows := names(t, "## Kinds that come with `trapeze serve`", "kind")
	same(t, "kinds", rows, append(literals(t, "handlers/*.go", kind), literals(t, "internal/cli/program/kinds_*.go", kind)...))
}

func TestReferencePermissionsAndRoles(t *testing.T) {
	t.Parallel()
	var permissions []string
	for _, one := range access.Permissions {
		permissions = append(permissions, string(one))
	}
	same(t, "permissions", names(t, "### Permissions", "permission"), permissions)
	var documented, roles []string
	for _, row := range table(t, "### Permissions", "role") {
		documented = append(documented, strings.Join(append(append(spans(row[0]), spans(row[1])...), row[2]), " "))
	}
	for _, one := range access.BuiltIn {
		words := []string{one.Name}
		for _, what := range one.Permissions {
			words = append(words, string(what))
		}
		roles = append(roles, strings.Join(append(words, string(one.Scope)), " "))
	}
	same(t, "roles with their permissions", documented, roles)
}
