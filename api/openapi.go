package api

import (
	"cmp"
	"encoding/json"
	"net/http"
	"reflect"
	"regexp"
	"strconv"
	"strings"

	"github.com/trapeze-run/trapeze/internal/access"
	"github.com/trapeze-run/trapeze/job"
)

// Route describes one route.
type documentedRoute struct {
	Method, Path, Summary string

	Needs    []access.Permission // none if callers need no credentials
	Changes  bool                // the request may carry a reason for the audit log
	Query    []string            // see meanings
	Headers  []string
	In       any        // a value of the body's type; nil if the body is not described
	Optional bool       // the body may be empty
	Form     bool       // the body is a form, not JSON
	Out      jsonSchema // the response; nil means any object
	Media    string     // the media type of the response, if it is not JSON
	Statuses []int      // the statuses of successful responses
}

var pathParameter = regexp.MustCompile(`:(\w+)`)

// meanings describes query parameters and headers. Keys are names, or a path and a name where one route differs.
var meanings = map[string]string{
	"state":           "one state or several, separated by commas",
	"pipeline":        "id of a pipeline, which is the id of its first job",
	"parent":          "id of the parent job",
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
	"epoch":           "only if the job is in this epoch, which changes with every retry; otherwise 409 job_changed",
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

	"/events limit":               "1 to 1000, default 1000",
	"/jobs/:id/events limit":      "1 to 1000, default 1000",
	"/pipelines/:id/events limit": "1 to 1000, default 1000",
	"/failures since":             "failed since: a time in RFC 3339, or an age such as 90m, default 24h",
	"/failures/:id since":         "failed since: a time in RFC 3339, or an age such as 90m, default 24h",
}

// Document describes all routes, plus /metrics, as an OpenAPI 3.1 document. Its server URL is relative, so the document is valid below any
// prefix.
func openAPIDocument(all []documentedRoute, types knownTypes) ([]byte, error) {
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
		paths[path][strings.ToLower(route.Method)] = operation(route, types)
	}
	return json.Marshal(map[string]any{
		"openapi": "3.1.0",
		"info": map[string]any{"title": "Trapeze", "version": "1",
			"description": "Submit, inspect and control jobs. Ids are strings. Lists are paged by next_cursor. Every error is a Problem."},
		"servers":  []any{map[string]any{"url": "."}},
		"security": []any{map[string]any{"token": []string{}}, map[string]any{"session": []string{}}},
		"paths":    paths,
		"components": map[string]any{
			"schemas": map[string]any{"Job": types.Of(reflect.TypeFor[job.Job]()), "Pipeline": types.Of(reflect.TypeFor[job.Pipeline]()),
				"Event": types.Of(reflect.TypeFor[job.Event]()), "Problem": problemSchema},
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
func operation(route documentedRoute, types knownTypes) map[string]any {
	o := map[string]any{"summary": route.Summary, "operationId": operationID(route), "responses": route.responses()}
	if len(route.Needs) == 0 {
		o["security"] = []any{}
	} else {
		o["x-permissions"] = route.Needs
	}
	taken := []any{}
	for _, found := range pathParameter.FindAllStringSubmatch(route.Path, -1) {
		taken = append(taken, describeParameter(found[1], "path", ""))
	}
	for _, name := range route.Query {
		taken = append(taken, describeParameter(name, "query", cmp.Or(meanings[route.Path+" "+name], meanings[name])))
	}
	for _, name := range route.Headers {
		taken = append(taken, describeParameter(name, "header", meanings[name]))
	}
	if route.Changes && len(route.Needs) > 0 {
		taken = append(taken, describeParameter("X-Reason", "header", meanings["X-Reason"]))
	}
	if len(taken) > 0 {
		o["parameters"] = taken
	}
	if route.In != nil {
		media := "application/json"
		if route.Form {
			media = "application/x-www-form-urlencoded"
		}
		o["requestBody"] = map[string]any{"required": !route.Optional, "content": content(media, types.Of(reflect.TypeOf(route.In)))}
	}
	return o
}

// operationID returns the name that generated clients use for a route's method, such as getJobsId or postAdminWorkersFreeze.
func operationID(route documentedRoute) string {
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

func (r documentedRoute) responses() map[string]any {
	all := map[string]any{"default": map[string]any{"description": "error",
		"content": content("application/json", jsonSchema{"$ref": "#/components/schemas/Problem"})}}
	for _, status := range r.Statuses {
		one := map[string]any{"description": strings.ToLower(http.StatusText(status))}
		switch {
		case r.Media != "":
			one["content"] = content(r.Media, jsonSchema{"type": "string"})
		case status == http.StatusNoContent || status == http.StatusSeeOther:
		case r.Out != nil:
			one["content"] = content("application/json", r.Out)
		default:
			one["content"] = content("application/json", jsonSchema{"type": "object"})
		}
		all[strconv.Itoa(status)] = one
	}
	return all
}
