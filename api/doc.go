// Package api is Trapeze's HTTP API: submit jobs, read them, end them, operate the pods. [Mount] puts it under any prefix of a host's
// own echo, and [Handler] is the same without one. `trapeze routes` and GET /openapi.json list the routes; the dashboard at /ui/ and the
// metrics at /metrics come with them.
//
// A route is a row ([Route]): method, path, permission, its scope, query parameters, body, answer,
// summary and handler. Each resource has a file with its rows and handlers. The door admits a request by its row, a handler gets the
// admitted call, and a view hides secrets from its caller.
//
// Commands go to the runner, most reads and the roles to the store. Ids are strings in JSON, and an error is always
// {"code","message","detail","request_id"} with a code that programs may rely on.
//
// [Options].Authenticate returns the sender of a request: sessions of the host's own, [TokenFile],
// [KeysFile] or [TrustedProxies]; without it Mount panics, unless InsecureAllowAll lets every request do everything. The
// roles of a principal decide its permissions, see docs/reference.md; permissions for own jobs only get 404 for others'.
package api
