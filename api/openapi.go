package api

import (
	"encoding/json"
	"net/http"
	"reflect"
	"regexp"
	"strconv"
	"strings"

	"github.com/labstack/echo/v4"

	"github.com/trapeze-run/trapeze/internal/access"
	"github.com/trapeze-run/trapeze/job"
)

var documentRoutes = []Route{
	{http.MethodGet, "/openapi.json", access.Nothing, "Describe the API, as OpenAPI 3.1", (*server).document},
}

func (s *server) document(c echo.Context) error { return c.JSONBlob(http.StatusOK, s.openapi) }

var pathParameter = regexp.MustCompile(`:(\w+)`)

// openAPI describes routes as an OpenAPI 3.1 document, which holds for any prefix: its server is where it was read from.
func openAPI(all []Route) ([]byte, error) {
	paths := map[string]map[string]any{"/metrics": {"get": map[string]any{
		"summary":   "Metrics for Prometheus",
		"security":  []any{},
		"responses": map[string]any{"200": map[string]any{"description": "as text", "content": content("text/plain", schema{"type": "string"})}},
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
			"description": "Submit jobs, look at them, steer them. Ids are strings. Lists page by next_cursor. Every error has the form of Problem."},
		"servers":  []any{map[string]any{"url": "."}},
		"security": []any{map[string]any{"token": []string{}}, map[string]any{"session": []string{}}},
		"paths":    paths,
		"components": map[string]any{
			"schemas": map[string]any{"Job": describe(reflect.TypeFor[job.Job]()), "Pipeline": describe(reflect.TypeFor[job.Pipeline]()),
				"Event": describe(reflect.TypeFor[job.Event]()), "Problem": problemSchema},
			"securitySchemes": map[string]any{
				"token":   map[string]any{"type": "http", "scheme": "bearer"},
				"session": map[string]any{"type": "apiKey", "in": "cookie", "name": access.SessionCookie},
			},
		},
	})
}

var problemSchema = schema{"type": "object", "required": []string{"code", "message", "detail", "request_id"}, "properties": schema{
	"code":       schema{"type": "string", "description": "stable: programs may rely on it"},
	"message":    schema{"type": "string"},
	"detail":     schema{"type": "string"},
	"request_id": schema{"type": "string"},
}}

// operation describes one route.
func operation(route Route) map[string]any {
	shape := shapes[route.Method+" "+route.Path]
	o := map[string]any{"summary": route.Summary, "operationId": operationID(route), "responses": shape.responses()}
	if route.Needs == access.Nothing {
		o["security"] = []any{}
	} else {
		o["x-permissions"] = route.needs()
	}
	parameters := []any{}
	for _, found := range pathParameter.FindAllStringSubmatch(route.Path, -1) {
		parameters = append(parameters, parameter(found[1], "path", ""))
	}
	for _, name := range shape.query {
		parameters = append(parameters, parameter(name, "query", queries[name]))
	}
	for _, name := range shape.headers {
		parameters = append(parameters, parameter(name, "header", queries[name]))
	}
	if route.changes() && route.Needs != access.Nothing {
		parameters = append(parameters, parameter("X-Reason", "header", queries["X-Reason"]))
	}
	if len(parameters) > 0 {
		o["parameters"] = parameters
	}
	if shape.in != nil {
		media := "application/json"
		if strings.HasPrefix(route.Path, "/ui/") {
			media = "application/x-www-form-urlencoded"
		}
		o["requestBody"] = map[string]any{"required": true, "content": content(media, describe(reflect.TypeOf(shape.in)))}
	}
	return o
}

// operationID is a name that a generated client gives its method: getJobsId, postAdminWorkersFreeze.
func operationID(route Route) string {
	words := strings.FieldsFunc(route.Path, func(r rune) bool { return strings.ContainsRune("/:._-", r) })
	for i, word := range words {
		words[i] = strings.ToUpper(word[:1]) + word[1:]
	}
	return strings.ToLower(route.Method) + strings.Join(words, "")
}

func parameter(name, in, description string) map[string]any {
	p := map[string]any{"name": name, "in": in, "schema": schema{"type": "string"}}
	if in == "path" {
		p["required"] = true
	}
	if description != "" {
		p["description"] = description
	}
	return p
}

func content(media string, s schema) map[string]any {
	return map[string]any{media: map[string]any{"schema": s}}
}

func (s shape) responses() map[string]any {
	all := map[string]any{"default": map[string]any{"description": "what went wrong",
		"content": content("application/json", schema{"$ref": "#/components/schemas/Problem"})}}
	statuses := s.statuses
	if len(statuses) == 0 {
		statuses = []int{http.StatusOK}
	}
	for _, status := range statuses {
		one := map[string]any{"description": strings.ToLower(http.StatusText(status))}
		switch {
		case s.media != "":
			one["content"] = content(s.media, schema{"type": "string"})
		case status == http.StatusNoContent || status == http.StatusSeeOther:
		case s.out != nil:
			one["content"] = content("application/json", s.out)
		default:
			one["content"] = content("application/json", schema{"type": "object"})
		}
		all[strconv.Itoa(status)] = one
	}
	return all
}
