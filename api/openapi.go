package api

import (
	"cmp"
	"encoding/json"
	"maps"
	"net/http"
	"reflect"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/trapeze-run/trapeze/internal/access"
	"github.com/trapeze-run/trapeze/internal/doctor"
	"github.com/trapeze-run/trapeze/job"
)

var pathParameter = regexp.MustCompile(`:(\w+)`)

// meanings describes query parameters and headers. Keys are names, or a path and a name where one route differs.
var meanings = map[string]string{
	"state":           "one state or several, separated by commas",
	"pipeline":        "id of a pipeline, which is the id of its first job",
	"parent":          "id of the parent job",
	"key":             "whose jobs: those with this key, such as a tenant",
	"current":         "true: only the current run of each kind and subject",
	"since":           "created since: a time in RFC 3339, or an age such as 90m",
	"children":        "whether to list children of fan-outs; default: true with any other filter",
	"reason":          "reason for the jobs' state, such as timeout",
	"error_class":     "failed jobs whose error has this class, such as panic",
	"error_code":      "failed jobs whose error has this code: an SQLSTATE, or a code of the handler",
	"limit":           "1 to 1000, default 50",
	"cursor":          "next_cursor of the previous page",
	"after":           "only events after this cursor",
	"search":          "the job with this id, or jobs with this text in the kind, subject, submitter or error; also error=text and args.path=value, such as args.user.id=7. Errors and args need jobs:args",
	"status":          "one status or several, separated by commas",
	"branches":        "maximum number of children per fan-out, 0 to 1000, default 5",
	"all":             "true: include pods that left or died",
	"epoch":           "only if the job is in this epoch, which changes with every retry; otherwise 409 conflict",
	"wait":            "maximum time to wait until no job runs, 0 to 50s",
	"move_to":         "lane that its jobs and kinds move to",
	"before":          "only entries older than the entry with this id",
	"Idempotency-Key": "the same principal and key return the same job for a day",
	"X-Reason":        "reason, recorded in the audit log",
	"dry_run":         "true: return the changes without saving them",
	"expression":      "schedule expression: cron with five or six fields, @daily and similar, @every 15m, or @at 2027-01-31T03:00",
	"transactions":    "warn about transactions older than this duration, default 5m; twelve times this age is a failure",
	"overdue":         "report due jobs that have not started after this duration, default 5m",
	"order":           "a column, the largest value first, default run_p95; or kind",
	"window":          "1h, 24h, 7d or 30d, default 1h",
	"by":              "lane or kind, default kind",
	"zone":            "IANA time zone, default UTC",
	"scope":           "lane or kind",

	"/admin/workers/limits name":       "name of the lane or kind",
	"/admin/workers/limits key":        "the key; * is the limit for each key",
	"/admin/workers/limits/usage lane": "only jobs of this lane",
	"/admin/workers/limits/usage kind": "only jobs of this kind",
	"/admin/workers/limits/usage key":  "only jobs of this key",

	"/events limit":               "1 to 1000, default 1000",
	"/jobs/:id/events limit":      "1 to 1000, default 1000",
	"/pipelines/:id/events limit": "1 to 1000, default 1000",
	"/failures since":             "failed since: a time in RFC 3339, or an age such as 90m, default 24h",
	"/failures/:id since":         "failed since: a time in RFC 3339, or an age such as 90m, default 24h",
}

// openAPIDocument describes all routes, plus /metrics, as an OpenAPI 3.1 document. Its server URL is relative, so the document is valid below any
// prefix.
func openAPIDocument(all []Route) ([]byte, error) {
	paths := map[string]map[string]any{"/metrics": {"get": map[string]any{
		"summary":   "Metrics for Prometheus",
		"security":  []any{},
		"responses": map[string]any{"200": map[string]any{"description": "text form", "content": content("text/plain", jsonSchema{"type": "string"})}},
	}}}
	for _, route := range all {
		path := pathParameter.ReplaceAllString(route.Path, "{$1}")
		if paths[path] == nil {
			paths[path] = map[string]any{}
		}
		paths[path][strings.ToLower(route.Method)] = operation(route)
	}
	return json.Marshal(map[string]any{
		"openapi": "3.1.0",
		"info": map[string]any{"title": "Trapeze", "version": "1",
			"description": "Submit, inspect and control jobs. Ids are strings. Lists are paged by next_cursor. Every error is a Problem."},
		"servers":  []any{map[string]any{"url": "."}},
		"security": []any{map[string]any{"token": []string{}}, map[string]any{"session": []string{}}},
		"paths":    paths,
		"components": map[string]any{
			"schemas": map[string]any{"Job": of[job.JobRow](), "Pipeline": of[job.Pipeline](), "Event": of[job.Event](), "Problem": problemSchema},
			"securitySchemes": map[string]any{
				"token": map[string]any{"type": "http", "scheme": "bearer"},
				"session": map[string]any{"type": "apiKey", "in": "cookie", "name": access.SessionCookie,
					"description": "The name of the cookie also has the port of the address, and a prefix under TLS."},
			},
		},
	})
}

var problemSchema = jsonSchema{"type": "object", "required": []string{"code", "message", "detail", "request_id"}, "properties": jsonSchema{
	"code":       jsonSchema{"type": "string", "description": "stable, for programs"},
	"message":    jsonSchema{"type": "string"},
	"detail":     jsonSchema{"type": "string"},
	"request_id": jsonSchema{"type": "string"},
}}

// operation describes one route.
func operation(route Route) map[string]any {
	o := map[string]any{"summary": route.Summary, "operationId": operationID(route), "responses": route.responses()}
	if route.Needs == access.Nothing {
		o["security"] = []any{}
	} else {
		o["x-permissions"] = route.permissions()
	}
	taken := []any{}
	for _, found := range pathParameter.FindAllStringSubmatch(route.Path, -1) {
		taken = append(taken, describeParameter(found[1], "path", ""))
	}
	for _, name := range route.query {
		taken = append(taken, describeParameter(name, "query", cmp.Or(meanings[route.Path+" "+name], meanings[name])))
	}
	for _, name := range route.headers {
		taken = append(taken, describeParameter(name, "header", meanings[name]))
	}
	if route.changes() && route.Needs != access.Nothing {
		taken = append(taken, describeParameter("X-Reason", "header", meanings["X-Reason"]))
	}
	if len(taken) > 0 {
		o["parameters"] = taken
	}
	if route.in != nil {
		media := "application/json"
		if route.form {
			media = "application/x-www-form-urlencoded"
		}
		o["requestBody"] = map[string]any{"required": !route.optional, "content": content(media, schemaOf(reflect.TypeOf(route.in)))}
	}
	return o
}

// operationID returns the name that generated clients use for a route's method, such as getJobsId or postAdminWorkersFreeze.
func operationID(route Route) string {
	words := strings.FieldsFunc(route.Path, func(r rune) bool { return strings.ContainsRune("/:._-", r) })
	for i, word := range words {
		words[i] = strings.ToUpper(word[:1]) + word[1:]
	}
	return strings.ToLower(route.Method) + strings.Join(words, "")
}

func describeParameter(name, in, description string) map[string]any {
	p := map[string]any{"name": name, "in": in, "schema": jsonSchema{"type": "string"}}
	if in == "path" {
		p["required"] = true
	}
	if description != "" {
		p["description"] = description
	}
	return p
}

func content(media string, s jsonSchema) map[string]any {
	return map[string]any{media: map[string]any{"schema": s}}
}

func (r Route) responses() map[string]any {
	all := map[string]any{"default": map[string]any{"description": "error",
		"content": content("application/json", jsonSchema{"$ref": "#/components/schemas/Problem"})}}
	statuses := r.statuses
	if len(statuses) == 0 {
		statuses = []int{r.usualStatus()}
	}
	for _, status := range statuses {
		one := map[string]any{"description": strings.ToLower(http.StatusText(status))}
		switch {
		case r.media != "":
			one["content"] = content(r.media, jsonSchema{"type": "string"})
		case status == http.StatusNoContent || status == http.StatusSeeOther:
		case r.out != nil:
			one["content"] = content("application/json", r.out)
		default:
			one["content"] = content("application/json", jsonSchema{"type": "object"})
		}
		all[strconv.Itoa(status)] = one
	}
	return all
}

// jsonSchema is a JSON Schema (2020-12), which OpenAPI 3.1 uses for request and response bodies.
type jsonSchema map[string]any

// knownTypes lists the types whose JSON form cannot be derived from their fields.
var knownTypes = map[reflect.Type]jsonSchema{
	reflect.TypeFor[Delay]():           {"type": []string{"number", "string"}, "description": "seconds, or a duration such as 1m30s"},
	reflect.TypeFor[doctor.Health]():   {"type": "string", "enum": []doctor.Health{doctor.Healthy, doctor.Warning, doctor.Failing}},
	reflect.TypeFor[time.Time]():       {"type": "string", "format": "date-time"},
	reflect.TypeFor[json.RawMessage](): {"description": "any JSON"},
	reflect.TypeFor[job.Seconds]():     {"type": "number", "description": "seconds"},
	reflect.TypeFor[job.State]():       {"type": "string", "enum": job.States()},
	reflect.TypeFor[job.Status]():      {"type": "string", "enum": job.Statuses()},
	reflect.TypeFor[job.Missed]():      {"type": "string", "enum": []job.Missed{job.MissedCoalesce, job.MissedCatchUp, job.MissedSkip}},
	reflect.TypeFor[job.Overlap]():     {"type": "string", "enum": []job.Overlap{job.OverlapQueue, job.OverlapSkip}},
	reflect.TypeFor[job.OccurrenceOutcome](): {"type": "string", "enum": []job.OccurrenceOutcome{job.OccurrenceFired, job.OccurrenceDuplicate, job.OccurrenceOverlap, job.OccurrenceMissed,
		job.OccurrenceFailed}},
	reflect.TypeFor[job.Limit[int]](): orNull(whole),
}

// schemaOf returns the schema of a type's JSON encoding by encoding/json. No member is marked as required.
func schemaOf(t reflect.Type) jsonSchema {
	if known, ok := knownTypes[t]; ok {
		return known
	}
	switch t.Kind() {
	case reflect.Pointer:
		return orNull(schemaOf(t.Elem()))
	case reflect.Struct:
		members := jsonSchema{}
		schemaFields(t, members)
		return jsonSchema{"type": "object", "properties": members}
	case reflect.Slice, reflect.Array:
		return jsonSchema{"type": "array", "items": schemaOf(t.Elem())}
	case reflect.Map:
		return jsonSchema{"type": "object", "additionalProperties": schemaOf(t.Elem())}
	case reflect.String:
		return jsonSchema{"type": "string"}
	case reflect.Bool:
		return jsonSchema{"type": "boolean"}
	case reflect.Float32, reflect.Float64:
		return jsonSchema{"type": "number"}
	case reflect.Interface:
		return jsonSchema{}
	}
	return jsonSchema{"type": "integer"}
}

func schemaFields(t reflect.Type, members jsonSchema) {
	for field := range t.Fields() {
		name, options, _ := strings.Cut(field.Tag.Get("json"), ",")
		switch {
		case name == "-" || !field.IsExported() && !field.Anonymous:
			continue
		case field.Anonymous && name == "":
			schemaFields(field.Type, members)
			continue
		case name == "":
			name = field.Name
		}
		schema := schemaOf(field.Type)
		if options == "string" { // IDs are strings because they may exceed the precision of a double
			schema = jsonSchema{"type": "string", "pattern": "^[0-9]+$"}
			if field.Type.Kind() == reflect.Pointer {
				schema = orNull(schema)
			}
		}
		members[name] = schema
	}
}

// orNull returns a schema that also allows null.
func orNull(schema jsonSchema) jsonSchema {
	switch kind := schema["type"].(type) {
	case string:
		if values, ok := schema["enum"]; ok {
			return jsonSchema{"anyOf": []jsonSchema{{"type": kind, "enum": values}, {"type": "null"}}}
		}
		all := maps.Clone(schema)
		all["type"] = []string{kind, "null"}
		return all
	case nil:
		return schema // allows anything, including null
	}
	return jsonSchema{"anyOf": []jsonSchema{schema, {"type": "null"}}}
}
