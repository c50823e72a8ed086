package api

import (
	"net/http"
	"reflect"
	"slices"

	"github.com/trapeze-run/trapeze/internal/access"
)

// Route is a row of the API: a method and a path, the permission to use them, what goes in and out, and the handler. Authorization, the
// refusal of unknown query parameters, the OpenAPI document and `trapeze routes` read it.
type Route struct {
	Method  string
	Path    string            // below the prefix it is mounted at
	Needs   access.Permission // to use it; [access.Nothing] for everyone
	Summary string            // a sentence, for the OpenAPI document and `trapeze routes`

	right access.Permission // on the job, which an operator's route to jobs needs as well
	scope scope             // of a permission for own jobs only

	query    []string // the parameters it takes, see meanings; others are refused
	headers  []string
	in       any    // a value of the body's type; nil: not described
	form     bool   // the body is a form, not JSON
	out      schema // of the answer; nil: an object
	media    string // of the answer, when it is not JSON
	statuses []int  // of answers without a problem, the usual one first; nil: 200

	do handler
}

// handler answers a request with a value for JSON: nil when it has no body, or when the handler has written it.
type handler func(*call) (any, error)

// scope is the use of a route to a caller whose permission is for own jobs only.
type scope int

const (
	allJobs   scope = iota // closed: the permission has to be for all jobs
	jobInPath              // open when the job or pipeline whose id the path has is the caller's
	ownJobs                // open: the handler shows and makes the caller's jobs only
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

// usualStatus returns the status of an answer without a problem.
func (r Route) usualStatus() int {
	if len(r.statuses) == 0 {
		return http.StatusOK
	}
	return r.statuses[0]
}

// unknown refuses query parameters that the row does not have: a misspelt one would be ignored, and the answer would be to another
// question. Routes without a permission ignore them: a prober, or a page that leads to the login, may add any.
func (r Route) unknown(query map[string][]string) error {
	for name := range query {
		if r.Needs != access.Nothing && !slices.Contains(r.query, name) {
			return invalid("unknown query parameter %q", name)
		}
	}
	return nil
}

// The schemas in which rows describe answers.
var textual = schema{"type": "string"}

func of[T any]() schema            { return describe(reflect.TypeFor[T]()) }
func component(name string) schema { return schema{"$ref": "#/components/schemas/" + name} }
func listOf(items schema) schema   { return schema{"type": "array", "items": items} }

// page is the schema of a list's page.
func page(name string, items schema) schema {
	return object(name, listOf(items), "next_cursor", textual)
}

// object is an object with members, name and schema in turn.
func object(members ...any) schema {
	properties := schema{}
	for pair := range slices.Chunk(members, 2) {
		properties[pair[0].(string)] = pair[1]
	}
	return schema{"type": "object", "properties": properties}
}
