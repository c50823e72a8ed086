package api

import (
	"net/http"
	"reflect"
	"slices"

	"github.com/trapeze-run/trapeze/internal/store"
	"github.com/trapeze-run/trapeze/job"
)

// shape is what goes in and out of a route, for the OpenAPI document. A route without one is described as answering 200 with an object.
type shape struct {
	in       any      // a value of the body's type
	query    []string // parameters, see queries
	headers  []string
	out      schema // of the answer
	media    string // of the answer, when it is not JSON
	statuses []int  // of answers without a problem; default 200
}

// shapes are those of the routes, by method and path.
var shapes = map[string]shape{
	"POST /jobs": {in: Submission{}, headers: []string{"Idempotency-Key"}, out: of[submitted](), statuses: []int{http.StatusAccepted}},
	"GET /jobs": {query: []string{"state", "kind", "lane", "subject", "pipeline", "parent", "current", "since", "children", "reason", "error_class", "error_code", "limit", "cursor"},
		out: page("jobs", component("Job"))},
	"GET /jobs/current":                      {query: []string{"kind", "subject"}, out: component("Job")},
	"GET /jobs/:id":                          {out: component("Job")},
	"GET /jobs/:id/obstacles":                {out: object("obstacles", list(of[job.Obstacle]()))},
	"GET /jobs/:id/events":                   {query: []string{"after", "limit"}, out: page("events", component("Event"))},
	"POST /jobs/:id/cancel":                  {out: of[ended](), statuses: []int{http.StatusOK, http.StatusAccepted}},
	"POST /admin/workers/jobs/:id/cancel":    {out: of[ended](), statuses: []int{http.StatusOK, http.StatusAccepted}},
	"POST /admin/workers/jobs/:id/stop":      {out: of[ended]()},
	"DELETE /jobs/:id":                       {out: object("id", text, "deleted", schema{"type": "integer"})},
	"POST /jobs/:id/retry":                   {in: again{}, statuses: []int{http.StatusAccepted}},
	"POST /jobs/:id/complete":                {in: completion{}},
	"GET /pipelines":                         {query: []string{"status", "name", "since", "limit", "cursor"}, out: page("pipelines", of[job.Pipeline]())},
	"GET /pipelines/:id":                     {query: []string{"branches"}},
	"POST /pipelines/:id/retry":              {in: again{}, statuses: []int{http.StatusAccepted}},
	"PATCH /admin/workers/jobs/:id/priority": {in: priority{}},
	"POST /admin/workers/jobs/cancel":        {in: Selection{}, out: of[Many]()},
	"POST /admin/workers/jobs/retry":         {in: Selection{}, out: of[Many]()},
	"GET /healthz":                           {out: object("status", text, "boot", text)},
	"GET /readyz": {out: object("ready", schema{"type": "boolean"}, "reasons", list(text), "running", schema{"type": "integer"}),
		statuses: []int{http.StatusOK, http.StatusServiceUnavailable}},
	"POST /ui/login":            {in: loginForm{}, statuses: []int{http.StatusNoContent, http.StatusSeeOther}},
	"POST /ui/logout":           {statuses: []int{http.StatusNoContent, http.StatusSeeOther}},
	"GET /admin/audit":          {query: []string{"actor", "action", "target", "before", "limit", "cursor"}, out: page("audit", of[store.AuditRow]())},
	"GET /admin/roles":          {out: object("roles", list(of[role]()))},
	"PUT /admin/roles/:name":    {in: roleBody{}, out: of[role]()},
	"DELETE /admin/roles/:name": {statuses: []int{http.StatusNoContent}},
	"GET /admin/roles/grants":   {query: []string{"principal", "role", "limit", "cursor"}, out: page("grants", of[store.RoleGrant]())},
	"PUT /admin/roles/grants":   {in: store.RoleGrant{}, out: of[store.RoleGrant]()},
	"DELETE /admin/roles/grants": {query: []string{"principal", "role"},
		statuses: []int{http.StatusNoContent}},
	"GET /openapi.json":                            {},
	"GET /events":                                  {query: []string{"after", "limit"}, out: page("events", component("Event"))},
	"GET /pipelines/:id/events":                    {query: []string{"after", "limit"}, out: page("events", component("Event"))},
	"GET /admin/workers/schedules":                 {out: object("schedules", list(of[job.ScheduleUse]()))},
	"GET /admin/workers/schedules/preview":         {query: []string{"expression", "zone"}, out: of[job.SchedulePreview]()},
	"GET /admin/workers/schedules/:name":           {out: of[job.ScheduleUse]()},
	"GET /admin/workers/schedules/:name/fires":     {query: []string{"limit", "cursor"}, out: page("fires", of[job.Fire]())},
	"PUT /admin/workers/schedules/:name":           {in: scheduleBody{}, query: []string{"dry_run"}, out: of[job.ScheduleChanged]()},
	"PATCH /admin/workers/schedules/:name":         {in: scheduleBody{}, query: []string{"dry_run"}, out: of[job.ScheduleChanged]()},
	"DELETE /admin/workers/schedules/:name":        {statuses: []int{http.StatusNoContent}},
	"POST /admin/workers/schedules/:name/pause":    {out: of[changed]()},
	"POST /admin/workers/schedules/:name/resume":   {out: of[changed]()},
	"POST /admin/workers/schedules/:name/trigger":  {out: of[job.Fire]()},
	"GET /jobs/:id/stream":                         {query: []string{"after"}, media: "text/event-stream"},
	"GET /pipelines/:id/stream":                    {query: []string{"after"}, media: "text/event-stream"},
	"GET /events/stream":                           {query: []string{"after"}, media: "text/event-stream"},
	"GET /admin/workers/lanes":                     {out: object("lanes", list(of[store.LaneUse]()))},
	"PUT /admin/workers/lanes/:name":               {query: []string{"dry_run"}, out: of[job.LaneChanged]()},
	"PATCH /admin/workers/lanes/:name":             {query: []string{"dry_run"}, out: of[job.LaneChanged]()},
	"DELETE /admin/workers/lanes/:name":            {query: []string{"dry_run", "move_to"}, out: of[job.LaneChanged]()},
	"POST /admin/workers/lanes/:name/drain":        {query: []string{"wait"}, out: of[job.Quiet]()},
	"POST /admin/workers/lanes/:name/resume":       {out: of[changed]()},
	"GET /admin/workers/pods":                      {query: []string{"all"}, out: object("pods", list(of[job.Pod]()))},
	"POST /admin/workers/pods/:id/drain":           {query: []string{"wait"}, out: of[job.Quiet]()},
	"POST /admin/workers/pods/:id/resume":          {out: of[changed]()},
	"POST /admin/workers/freeze":                   {query: []string{"wait"}, out: of[job.Quiet]()},
	"POST /admin/workers/thaw":                     {out: of[changed]()},
	"POST /admin/workers/pause":                    {out: of[changed]()},
	"POST /admin/workers/unpause":                  {out: of[changed]()},
	"GET /admin/workers/status":                    {out: of[store.Status]()},
	"GET /admin/workers/retention":                 {out: object("retention", list(of[job.Retention]()))},
	"PUT /admin/workers/retention/:kind/:state":    {in: keep{}, out: of[job.RetentionChanged]()},
	"DELETE /admin/workers/retention/:kind/:state": {out: of[job.RetentionChanged]()},
	"GET /admin/export/jobs":                       {media: "application/x-ndjson"},
	"GET /admin/export/events":                     {media: "application/x-ndjson"},
}

// queries say what parameters mean.
var queries = map[string]string{
	"state":           "one state or several, separated by commas",
	"pipeline":        "id of a pipeline: that of its first job",
	"parent":          "id of the job that it follows",
	"since":           "made since: RFC 3339, or how long ago, such as 90m",
	"children":        "whether children of fan-outs are listed; default: with any other filter",
	"reason":          "why the jobs stand where they stand, such as timeout",
	"error_class":     "class of the error, such as panic: jobs that failed",
	"error_code":      "an SQLSTATE, or a handler's own code: jobs that failed",
	"limit":           "1 to 1000, default 50",
	"cursor":          "next_cursor of the page before",
	"after":           "cursor of an event: only what comes after it",
	"status":          "one status or several, separated by commas",
	"branches":        "so many branches of each fan-out, 0 to 1000, default 5",
	"all":             "true: those that have closed too",
	"wait":            "wait so long at most until it is quiet: 0 to 50s",
	"move_to":         "the lane that its jobs and its kinds go to",
	"before":          "id of a row: only older ones",
	"Idempotency-Key": "the same key of the same principal is the same job for a day",
	"X-Reason":        "why, for the audit",
	"dry_run":         "true: only tell what would change",
	"expression":      "when: cron with five or six fields, @daily and the like, @every 15m, or @at 2027-01-31T03:00",
	"zone":            "time zone by its IANA name, default UTC",
}

// loginForm is the form of the dashboard's login.
type loginForm struct {
	Token string `json:"token"`
	Next  string `json:"next,omitempty"` // the page that was asked for: its address from /ui/ on
}

var text = schema{"type": "string"}

func of[T any]() schema            { return describe(reflect.TypeFor[T]()) }
func component(name string) schema { return schema{"$ref": "#/components/schemas/" + name} }
func list(items schema) schema     { return schema{"type": "array", "items": items} }

// page is the answer of a list.
func page(name string, items schema) schema { return object(name, list(items), "next_cursor", text) }

// object is an object with members, name and schema in turn.
func object(members ...any) schema {
	properties := schema{}
	for pair := range slices.Chunk(members, 2) {
		properties[pair[0].(string)] = pair[1]
	}
	return schema{"type": "object", "properties": properties}
}
