package main

import (
	"encoding/json"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/matryer/is"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/trapeze-run/trapeze/api"
	"github.com/trapeze-run/trapeze/internal/cli"
	"github.com/trapeze-run/trapeze/internal/cli/program"
	"github.com/trapeze-run/trapeze/internal/envvar"
	"github.com/trapeze-run/trapeze/internal/pgtest"
	"github.com/trapeze-run/trapeze/internal/telemetry"
	"github.com/trapeze-run/trapeze/runner"
)

const generated = "<!-- Generated from the code: go test ./cmd/trapeze -run ReferencePages -update -->\n\n"

// TestGeneratedReferencePages compares the generated pages docs/reference-*.md with the code. The -update flag rewrites the pages.
func TestGeneratedReferencePages(t *testing.T) {
	t.Parallel()
	for name, page := range map[string]func(*testing.T) string{
		"commands": commandsPage, "environment": environmentPage, "http": httpPage, "metrics": metricsPage, "errors": errorsPage,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			file, want := "../../docs/reference-"+name+".md", generated+page(t)
			if *update {
				is.New(t).NoErr(os.WriteFile(file, []byte(want), 0o644))
				return
			}
			if read(t, file) != want {
				t.Errorf("%s is stale: go test ./cmd/trapeze -run ReferencePages -update", file)
			}
		})
	}
}

// cell escapes text for a table cell.
func cell(text string) string {
	return strings.NewReplacer("|", "\\|", "\n", " ", "<", "&lt;").Replace(text)
}

func commandsPage(*testing.T) string {
	root := program.Command("")
	var commands []*cobra.Command
	var walk func(c *cobra.Command)
	walk = func(c *cobra.Command) {
		if c.Hidden || c.Name() == "help" || c.Name() == "completion" {
			return
		}
		if c.HasParent() && !c.HasSubCommands() || c.LocalNonPersistentFlags().HasFlags() {
			commands = append(commands, c)
		}
		for _, below := range c.Commands() {
			walk(below)
		}
	}
	walk(root)

	shared := sharedFlags(commands)
	var b strings.Builder
	b.WriteString("# Commands\n\nThe program is `trapeze`. A program that embeds `cmd/app` has the same commands under another name.\n" +
		"[The overview](reference.md#commands) describes exit codes, output formats and `--server`.\n")
	for _, c := range commands {
		c.DisableFlagsInUseLine = true
		text := c.Long
		if text == "" {
			text = c.Short + "."
		}
		fmt.Fprintf(&b, "\n## %s\n\n", c.CommandPath())
		if c.UseLine() != c.CommandPath() {
			fmt.Fprintf(&b, "`%s`\n\n", c.UseLine())
		}
		b.WriteString(strings.ReplaceAll(strings.TrimSpace(text), "<", "&lt;") + "\n")
		var elsewhere []string
		var own []*pflag.Flag
		c.LocalNonPersistentFlags().VisitAll(func(f *pflag.Flag) {
			if shared[f.Name] != nil && flagItem(shared[f.Name]) == flagItem(f) {
				elsewhere = append(elsewhere, "`--"+f.Name+"`")
			} else {
				own = append(own, f)
			}
		})
		if len(elsewhere) > 0 {
			fmt.Fprintf(&b, "\n[Flags](#flags-of-several-commands): %s\n", strings.Join(elsewhere, " "))
		}
		writeFlags(&b, own)
		if c.Example != "" {
			fmt.Fprintf(&b, "\n```\n%s\n```\n", strings.TrimRight(unindent(c.Example), "\n"))
		}
	}
	b.WriteString("\n## Flags of several commands\n")
	writeFlags(&b, slices.SortedFunc(maps.Values(shared), func(a, b *pflag.Flag) int { return strings.Compare(a.Name, b.Name) }))
	b.WriteString("\n## Flags of every command\n")
	var all []*pflag.Flag
	root.PersistentFlags().VisitAll(func(f *pflag.Flag) { all = append(all, f) })
	writeFlags(&b, all)
	return b.String()
}

// sharedFlags returns the flags that at least two commands have with the same default and meaning, by name.
func sharedFlags(commands []*cobra.Command) map[string]*pflag.Flag {
	count, shared := map[string]int{}, map[string]*pflag.Flag{}
	for _, c := range commands {
		c.LocalNonPersistentFlags().VisitAll(func(f *pflag.Flag) {
			if count[flagItem(f)]++; count[flagItem(f)] == 2 && shared[f.Name] == nil {
				shared[f.Name] = f
			}
		})
	}
	return shared
}

func writeFlags(b *strings.Builder, flags []*pflag.Flag) {
	for i, f := range flags {
		if i == 0 {
			b.WriteString("\n")
		}
		b.WriteString(flagItem(f))
	}
}

// flagItem formats a flag as an item of a list.
func flagItem(f *pflag.Flag) string {
	value := ""
	if !slices.Contains([]string{"", "[]", "0", "0s", "false", cli.DataDir()}, f.DefValue) { // DataDir differs between machines
		value = " (`" + f.DefValue + "`)"
	}
	return fmt.Sprintf("- `--%s`%s: %s\n", f.Name, value, cell(f.Usage))
}

// unindent removes two leading spaces from each line of an example.
func unindent(text string) string {
	return regexp.MustCompile(`(?m)^  `).ReplaceAllString(text, "")
}

func environmentPage(t *testing.T) string {
	meaning := map[string]string{}
	ast.Inspect(parse(t, "../../internal/envvar/variables.go"), func(n ast.Node) bool {
		if field, ok := n.(*ast.Field); ok && field.Tag != nil {
			tag, err := strconv.Unquote(field.Tag.Value)
			if err != nil {
				t.Fatal(err)
			}
			meaning[reflect.StructTag(tag).Get("envconfig")] = sentence(field.Doc.Text())
		}
		return true
	})
	parts := map[string]string{
		"Runner":  "## Runner\n\nRead by every pod, and by programs that embed Trapeze through `runner/env`.",
		"API":     "## HTTP API\n\nRead by `trapeze serve`, and by programs that embed the API through `api/env`.",
		"Program": "## Commands\n\nRead by the commands only.",
	}
	var b strings.Builder
	b.WriteString("# Environment variables\n\nA variable with a wrong value and an unknown `TRAPEZE_…` variable are errors: the program names all of them and exits with code 2.\n" +
		"An empty variable counts as unset. Variables that Kubernetes sets for services named `trapeze` or `trapeze-…` are ignored.\n" +
		"A duration is a number with a unit: `1500ms`, `10s`, `48h`.\n")
	part := ""
	for _, one := range envvar.Variables() {
		if one.Part != part {
			part = one.Part
			fmt.Fprintf(&b, "\n%s\n\n| variable | default | meaning |\n|---|---|---|\n", parts[part])
		}
		if meaning[one.Name] == "" {
			t.Errorf("internal/envvar: the field of %s has no comment", one.Name)
		}
		fmt.Fprintf(&b, "| `%s` | %s | %s |\n", one.Name, defaultOf(one), cell(meaning[one.Name]))
	}
	return b.String()
}

func defaultOf(one envvar.Variable) string {
	switch value := one.Default.(type) {
	case time.Duration:
		if value == 0 {
			return "`0`"
		}
		return "`" + regexp.MustCompile(`(m|h)0s$|0m0s$`).ReplaceAllString(value.String(), "$1") + "`"
	case []string:
		return ""
	case string:
		if value == "" {
			return ""
		}
	}
	if one.Name == "TRAPEZE_SLOTS" { // its default differs between machines
		return "4 × GOMAXPROCS"
	}
	return fmt.Sprintf("`%v`", one.Default)
}

// sentence joins the lines of a comment.
func sentence(text string) string { return strings.Join(strings.Fields(text), " ") }

func parse(t *testing.T, file string) *ast.File {
	t.Helper()
	parsed, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.ParseComments)
	if err != nil {
		t.Fatal(err)
	}
	return parsed
}

func metricsPage(*testing.T) string {
	types := map[telemetry.Type]string{telemetry.CounterType: "counter", telemetry.GaugeType: "gauge", telemetry.HistogramType: "histogram"}
	var b strings.Builder
	b.WriteString("# Metrics\n\n`GET /metrics` exports them for Prometheus; a program that embeds Trapeze registers `metrics.Collector(r)` of `runner/metrics`.\n" +
		"[Metrics, traces and logs](observability.md) lists the questions that they answer, with queries.\n\n| metric | type | labels | meaning |\n|---|---|---|---|\n")
	all := telemetry.New().Set.Metrics()
	slices.SortFunc(all, func(a, b telemetry.Metric) int { return strings.Compare(a.Name, b.Name) })
	for _, one := range all {
		labels := ""
		if len(one.Labels) > 0 {
			labels = "`" + strings.Join(one.Labels, "` `") + "`"
		}
		fmt.Fprintf(&b, "| `%s` | %s | %s | %s |\n", one.Name, types[one.Type], labels, cell(one.Help))
	}
	return b.String()
}

func errorsPage(t *testing.T) string {
	type known struct{ text, meaning string }
	errs := map[string]known{}
	files, err := filepath.Glob("../../job/*.go")
	is.New(t).NoErr(err)
	for _, file := range files {
		ast.Inspect(parse(t, file), func(n ast.Node) bool {
			if spec, ok := n.(*ast.ValueSpec); ok && strings.HasPrefix(spec.Names[0].Name, "Err") && len(spec.Values) == 1 {
				one := known{meaning: sentence(spec.Doc.Text())}
				if call, ok := spec.Values[0].(*ast.CallExpr); ok && len(call.Args) == 1 {
					if literal, ok := call.Args[0].(*ast.BasicLit); ok {
						one.text, _ = strconv.Unquote(literal.Value)
					}
				}
				errs[spec.Names[0].Name] = one
			}
			return true
		})
	}
	answers := map[string]string{}
	for _, found := range regexp.MustCompile(`\{job\.(Err\w+), http\.Status(\w+), "(\w+)"\}`).FindAllStringSubmatch(read(t, "../../api/problem.go"), -1) {
		for status := 400; status < 600; status++ {
			if strings.ReplaceAll(http.StatusText(status), " ", "") == found[2] {
				answers[found[1]] = fmt.Sprintf("%d `%s`", status, found[3])
			}
		}
	}
	if len(answers) < 20 {
		t.Fatalf("only %d errors with a status found in api/problem.go", len(answers))
	}
	var b strings.Builder
	b.WriteString("# Errors\n\nThe errors of package `job`, which package `runner` has under the same names. Compare with `errors.Is`.\n" +
		"[Errors: what to do](errors.md) lists which calls return them. [The overview](reference.md#error-codes) lists the codes of the HTTP API.\n\n" +
		"| error | text | HTTP | meaning |\n|---|---|---|---|\n")
	link := regexp.MustCompile(`\[(?:job\.|context\.)?(\w+)\]`)
	subject := regexp.MustCompile(`^Err\w+ (says|means|reports) that `)
	for _, name := range slices.Sorted(maps.Keys(errs)) {
		one := errs[name]
		text := ""
		if one.text != "" {
			text = "`" + one.text + "`"
		}
		fmt.Fprintf(&b, "| `%s` | %s | %s | %s |\n", name, text, answers[name], cell(link.ReplaceAllString(subject.ReplaceAllString(one.meaning, ""), "`$1`")))
	}
	return b.String()
}

// document holds the parts of an OpenAPI document that the page shows.
type document struct {
	Paths      map[string]map[string]operation
	Components struct{ Schemas map[string]shape }
}

type operation struct {
	Summary     string
	Permissions []string `json:"x-permissions"`
	Parameters  []struct{ Name, In, Description string }
	RequestBody struct {
		Required bool
		Content  map[string]media
	}
	Responses map[string]struct{ Content map[string]media }
}

type media struct{ Schema shape }

// shape is a JSON Schema.
type shape struct {
	Ref         string `json:"$ref"`
	Type        any
	Description string
	Enum        []string
	Items       *shape
	Properties  map[string]shape
	AnyOf       []shape
	Values      *shape `json:"additionalProperties"`
}

// String formats the shape on one line.
func (s shape) String() string {
	switch {
	case s.Ref != "":
		return strings.TrimPrefix(s.Ref, "#/components/schemas/")
	case s.Items != nil:
		return "[" + s.Items.String() + "]"
	case len(s.Enum) > 0:
		return strings.Join(s.Enum, " or ")
	case len(s.AnyOf) > 0:
		return s.AnyOf[0].String() + " or null"
	case s.Properties != nil:
		return "{" + strings.Join(slices.Sorted(maps.Keys(s.Properties)), ", ") + "}"
	case s.Description != "":
		return s.Description
	}
	if list, ok := s.Type.([]any); ok {
		return fmt.Sprint(list[0]) + " or null"
	}
	if s.Type == nil {
		return "any JSON"
	}
	return fmt.Sprint(s.Type)
}

func httpPage(t *testing.T) string {
	is := is.New(t)
	r, err := runner.New(pgtest.Pool(t), runner.Options{})
	is.NoErr(err)
	defer r.Close()
	answer := httptest.NewRecorder()
	api.Handler(r, api.Options{InsecureAllowAll: true}).ServeHTTP(answer, httptest.NewRequest(http.MethodGet, "http://localhost/openapi.json", nil))
	var doc document
	is.NoErr(json.Unmarshal(answer.Body.Bytes(), &doc))

	shared := sharedParameters(doc)
	var b strings.Builder
	b.WriteString("# HTTP API\n\n`trapeze serve` has these routes at its root; `api.Mount` and `api.Handler` put them below any prefix. `GET /openapi.json` is the same in OpenAPI 3.1.\n" +
		"[The overview](reference.md#http) describes paging, lost answers, error codes and permissions. Fields without a type are strings.\n" +
		"`Idempotency-Key` and `X-Reason` are headers; the other parameters are in the query. Every route that changes something and needs a permission accepts `X-Reason`.\n" +
		"Parameters of several routes:\n\n")
	for _, name := range slices.Sorted(maps.Keys(shared)) {
		fmt.Fprintf(&b, "- `%s`: %s\n", name, cell(shared[name]))
	}
	for _, route := range api.Routes() {
		path := regexp.MustCompile(`:(\w+)`).ReplaceAllString(route.Path, "{$1}")
		o, ok := doc.Paths[path][strings.ToLower(route.Method)]
		is.True(ok)
		fmt.Fprintf(&b, "\n## %s %s\n\n%s.", route.Method, route.Path, cell(o.Summary))
		if len(o.Permissions) > 0 {
			fmt.Fprintf(&b, " Needs `%s`.", strings.Join(o.Permissions, "` and `"))
		}
		b.WriteString("\n")
		var bare, described []string
		for _, p := range o.Parameters {
			switch {
			case p.In == "path" || p.Name == "X-Reason": // see the introduction
			case p.Description == "" || shared[p.Name] != "":
				bare = append(bare, p.Name)
			default:
				described = append(described, fmt.Sprintf("- `%s`: %s\n", p.Name, cell(p.Description)))
			}
		}
		if len(bare) > 0 {
			fmt.Fprintf(&b, "\nParameters: `%s`\n", strings.Join(bare, "` `"))
		}
		if len(described) > 0 {
			b.WriteString("\n" + strings.Join(described, ""))
		}
		for _, content := range o.RequestBody.Content {
			optional := ""
			if !o.RequestBody.Required {
				optional = ", optional"
			}
			fmt.Fprintf(&b, "\nBody%s: %s\n", optional, strings.Join(content.Schema.fields(), ", "))
		}
		var answers []string
		for _, status := range slices.Sorted(maps.Keys(o.Responses)) {
			if status == "default" {
				continue
			}
			answer := status
			for kind, content := range o.Responses[status].Content {
				if kind == "application/json" && len(content.Schema.String()) > 2 {
					kind = "`" + content.Schema.String() + "`"
				}
				answer += " " + kind
			}
			answers = append(answers, answer)
		}
		fmt.Fprintf(&b, "\nAnswer: %s\n", strings.Join(answers, ", "))
	}
	for _, name := range slices.Sorted(maps.Keys(doc.Components.Schemas)) {
		fmt.Fprintf(&b, "\n## %s\n\n- %s\n", name, strings.Join(doc.Components.Schemas[name].fields(), "\n- "))
	}
	return b.String()
}

// sharedParameters returns the descriptions of the parameters that at least three routes have with the same meaning.
func sharedParameters(doc document) map[string]string {
	meanings, count := map[string]map[string]bool{}, map[string]int{}
	for _, methods := range doc.Paths {
		for _, o := range methods {
			for _, p := range o.Parameters {
				if meanings[p.Name] == nil {
					meanings[p.Name] = map[string]bool{}
				}
				meanings[p.Name][p.Description], count[p.Name] = true, count[p.Name]+1
			}
		}
	}
	shared := map[string]string{}
	for name, descriptions := range meanings {
		if len(descriptions) == 1 && !descriptions[""] && count[name] > 2 {
			shared[name] = slices.Collect(maps.Keys(descriptions))[0]
		}
	}
	return shared
}

// fields formats the fields of an object, grouped by type, strings first.
func (s shape) fields() (groups []string) {
	if s.Properties == nil {
		return []string{"`" + s.String() + "`"}
	}
	byType := map[string][]string{}
	for _, name := range slices.Sorted(maps.Keys(s.Properties)) {
		of := s.Properties[name].String()
		byType[of] = append(byType[of], "`"+name+"`")
	}
	if names := byType["string"]; names != nil {
		groups = append(groups, strings.Join(names, " "))
		delete(byType, "string")
	}
	for _, of := range slices.Sorted(maps.Keys(byType)) {
		groups = append(groups, strings.Join(byType[of], " ")+" ("+cell(of)+")")
	}
	return groups
}
