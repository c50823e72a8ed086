// Package api is Trapeze's HTTP API: submit, read and end jobs, and operate the pods. [Mount] puts it under any prefix of a host's echo,
// and [Handler] serves it without one. `trapeze routes` and GET /openapi.json list the routes. The dashboard at /ui/ and the metrics at
// /metrics are included.
//
// A route is a row ([Route]): method, path, permission, scope, query parameters, body, answer, summary and handler. Each resource has a
// file with its rows and handlers. The door admits a request by its row, a handler gets the admitted call, and a view hides secrets from
// its caller.
//
// Commands call the runner; most reads, and the roles, use the store. Ids are strings in JSON. An error is always
// {"code","message","detail","request_id"} with a code that programs may rely on.
//
// [Options].Authenticate returns the sender of a request: by the host's sessions, [TokenFile], [KeysFile] or [TrustedProxies]. Without
// it Mount panics, unless InsecureAllowAll gives every request all permissions. The roles of a principal decide its permissions, see
// docs/reference.md. A permission for own jobs only answers 404 for the jobs of others.
package api
