package api

import (
	"net/http"
	"reflect"
	"slices"

	"github.com/trapeze-run/trapeze/internal/access"
)

// Route describes an API route: its method and path, the required permission, the input and output, and the handler. Authorization, the
// check for unknown query parameters, the OpenAPI document and `trapeze routes` all use it.
type Route struct {
	Method  string
	Path    string            // relative to the API's prefix
	Needs   access.Permission // the required permission; [access.Nothing] if none is required
	Summary string            // one sentence for the OpenAPI document and `trapeze routes`

	right access.Permission // an additional permission for the job itself, on operator routes
	scope scope             // the effect of a permission that covers only the caller's own jobs

	query    []string // the accepted parameters (see openapi.meanings); others are rejected
	headers  []string
	in       any        // a value of the body's type; nil if the body is not described
	optional bool       // the body may be empty
	form     bool       // the body is a form, not JSON
	out      jsonSchema // the response schema; nil means any object
	media    string     // the media type of the response, if it is not JSON
	statuses []int      // the statuses of successful responses, the default first; nil means 200

	do handler
}

// handler handles a request and returns a value to encode as JSON. It returns nil if the response has no body or the handler has written
// it.
type handler func(*call) (any, error)

// scope defines the access of callers whose permission covers only their own jobs.
type scope int

const (
	allJobs   scope = iota // the route is forbidden: the permission must cover all jobs
	jobInPath              // allowed if the job or pipeline in the path belongs to the caller
	ownJobs                // allowed: the handler shows and creates only the caller's jobs
)

// changes reports whether the route may change state.
func (r Route) changes() bool { return r.Method != http.MethodGet && r.Method != http.MethodHead }

// permissions returns the permissions that the route requires.
func (r Route) permissions() []access.Permission {
	if r.right == "" {
		return []access.Permission{r.Needs}
	}
	return []access.Permission{r.Needs, r.right}
}

// usualStatus returns the default status of a successful response.
func (r Route) usualStatus() int {
	if len(r.statuses) == 0 {
		return http.StatusOK
	}
	return r.statuses[0]
}

// checkQuery rejects query parameters that the route does not accept. If a misspelled parameter were ignored, the response would not match
// the caller's request. Routes without a permission ignore unknown parameters, because a probe or a login redirect may add some.
func (r Route) checkQuery(query map[string][]string) error {
	for name := range query {
		if r.Needs != access.Nothing && !slices.Contains(r.query, name) {
			return invalid("unknown query parameter %q", name)
		}
	}
	return nil
}

var (
	textual = jsonSchema{"type": "string"}
	whole   = jsonSchema{"type": "integer"}
	yesNo   = jsonSchema{"type": "boolean"}
)

func of[T any]() jsonSchema { return schemaOf(reflect.TypeFor[T]()) }
func component(name string) jsonSchema {
	return jsonSchema{"$ref": "#/components/schemas/" + name}
}
func listOf(items jsonSchema) jsonSchema {
	return jsonSchema{"type": "array", "items": items}
}

// page returns the schema of one page of a list.
func page(name string, items jsonSchema) jsonSchema {
	return object(name, listOf(items), "next_cursor", textual)
}

// object returns the JSON schema of an object with the given properties. Each property takes two arguments: its name and its schema.
func object(members ...any) jsonSchema {
	properties := jsonSchema{}
	for pair := range slices.Chunk(members, 2) {
		properties[pair[0].(string)] = pair[1]
	}
	return jsonSchema{"type": "object", "properties": properties}
}
