// Package api is Trapeze's HTTP API. Clients submit, read and cancel jobs, and operators manage the pods. [Mount] adds the API to a host
// program's echo router under any prefix, and [Handler] serves it without one. `trapeze routes` and GET /openapi.json list the routes. It
// includes the dashboard at /ui/ and the metrics at /metrics.
//
// Each [Route] has a method, path, permission, scope, query parameters, body, response, summary and handler. Each resource's routes are
// defined next to their handlers, and routes.go lists the resources. A request must be admitted before its handler runs, and secrets that the
// caller may not see are removed from the response.
//
// Commands call the runner. Most reads, and all operations on roles, use the store. IDs are strings in JSON. Every error has the form
// {"code","message","detail","request_id"}, and programs may rely on its code.
//
// [Options].Authenticate returns the sender of a request. It may use the host's sessions, [TokenFile], [KeysFile] or [TrustedProxies].
// Without it, Mount panics, unless InsecureAllowAll gives every request all permissions. A principal's roles determine its permissions (see
// docs/reference.md). A principal whose permission covers only its own jobs gets 404 for other principals' jobs.
package api
