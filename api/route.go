package api

import (
	"net/http"
	"reflect"
	"slices"

	"github.com/trapeze-run/trapeze/internal/access"
)

// Route is a row of the API: a method and a path, the permission to use them, the input and output, and the handler. Authorization, the
// rejection of unknown query parameters, the OpenAPI document and `trapeze routes` read it.
type Route struct {
	Method  string
	Path    string            // below the prefix of the API
	Needs   access.Permission // to use it; [access.Nothing]: none
	Summary string            // a sentence, for the OpenAPI document and `trapeze routes`

	right access.Permission // for the job itself; an operator's route to jobs needs it too
	scope scope             // for a permission that covers own jobs only

	query    []string // the parameters it accepts, see meanings; others are rejected
	headers  []string
	in       any    // a value of the body's type; nil: not described
	form     bool   // the body is a form, not JSON
	out      schema // of the answer; nil: an object
	media    string // of the answer, if it is not JSON
	statuses []int  // of successful answers, the usual one first; nil: 200

	do handler
}

// handler handles a request and returns a value for JSON. It returns nil if the answer has no body or the handler has written it.
type handler func(*call) (any, error)

// scope defines how a caller may use a route if its permission covers own jobs only.
type scope int

const (
	allJobs   scope = iota // closed: the permission must cover all jobs
	jobInPath              // open if the job or pipeline in the path belongs to the caller
	ownJobs                // open: the handler shows and creates only the caller's jobs
)

// changes reports whether the route may change anything.
func (r Route) changes() bool { return r.Method != http.MethodGet && r.Method != http.MethodHead }

// permissions returns the permissions that the route needs.
func (r Route) permissions() []access.Permission {
	if r.right == "" {
		return []access.Permission{r.Needs}
	}
	return []access.Permission{r.Needs, r.right}
}

// usualStatus returns the status of a successful answer.
func (r Route) usualStatus() int {
	if len(r.statuses) == 0 {
		return http.StatusOK
	}
	return r.statuses[0]
}

// checkQuery rejects query parameters that the row does not have. If a misspelt one were ignored, the answer would be to a different
// question. Routes without a permission ignore unknown parameters: a prober, or a page that leads to the login, may add any.
func (r Route) checkQuery(query map[string][]string) error {
	for name := range query {
		if r.Needs != access.Nothing && !slices.Contains(r.query, name) {
			return invalid("unknown query parameter %q", name)
		}
	}
	return nil
}

// The schemas with which rows describe answers.
var textual = schema{"type": "string"}

func of[T any]() schema            { return describe(reflect.TypeFor[T]()) }
func component(name string) schema { return schema{"$ref": "#/components/schemas/" + name} }
func listOf(items schema) schema   { return schema{"type": "array", "items": items} }

// page is the schema of a list's page.
func page(name string, items schema) schema {
	return object(name, listOf(items), "next_cursor", textual)
}

// object returns the schema of an object with members, given as name and schema in turn.
func object(members ...any) schema {
	properties := schema{}
	for pair := range slices.Chunk(members, 2) {
		properties[pair[0].(string)] = pair[1]
	}
	return schema{"type": "object", "properties": properties}
}
