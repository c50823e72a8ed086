// Package api is Trapeze's HTTP API: submit jobs, read them, end them, and ask a pod for its state. [Mount] puts it under
// any prefix of a host's own echo:
//
//	POST   /jobs                              202, with an Idempotency-Key if the answer may get lost
//	GET    /jobs                              a page, newest first: state kind lane subject pipeline parent since limit cursor
//	GET    /jobs/:id                          one job
//	GET    /jobs/:id/events                   its history
//	GET    /jobs/:id/stream                   its history as it happens, until it has ended (server-sent events)
//	GET    /pipelines/:id/stream              that of all jobs of a pipeline, until it is over
//	GET    /events/stream                     that of everything
//	GET    /jobs/current                      the current run of a kind and subject
//	POST   /jobs/:id/cancel                   end it; a job that has ended already is only shown
//	DELETE /jobs/:id                          delete it, once it has ended; by its first job a pipeline
//	POST   /jobs/:id/approve                  let it go
//	POST   /jobs/:id/retry                    run it again, if need be with other {"args"}
//	POST   /jobs/:id/complete                 end a deferred one: {"token","part","result","error"}
//	GET    /pipelines                         a page, newest first: status name since limit cursor
//	GET    /pipelines/:id                     one, with its jobs and what became of their branches
//	POST   /pipelines/:id/abort               cancel what has not ended
//	POST   /pipelines/:id/retry               go on from the step that failed
//	PATCH  /admin/workers/jobs/:id/priority   {"priority","chain"} for one that waits
//	POST   /admin/workers/jobs/cancel         all of a {"filter"}, with "dry_run" only told
//	POST   /admin/workers/jobs/retry          as above
//	POST   /admin/workers/jobs/:id/cancel     as above, but 409 when it has ended already
//	POST   /admin/workers/jobs/:id/stop       end it at once, whatever its handler does
//	GET    /events                            the history of everything, after a cursor; /pipelines/:id/events of a pipeline
//	GET    /admin/export/jobs|events          everything, one JSON object a line, from one snapshot
//	…      /admin/workers/lanes…              list, make, change, delete, drain, resume
//	…      /admin/workers/pods…               list, drain, resume
//	POST   /admin/workers/freeze|thaw|pause|unpause
//	GET    /admin/workers/status              gate, lanes, pods, and what is in their slots
//	GET    /healthz                           the process is there; asks no database
//	GET    /readyz                            this pod may take work; 503 with the reasons when not
//	GET    /metrics                           Prometheus
//
// A route is a row ([Route]): method, path, permission, what that means for a caller's own jobs, query parameters, body, answer,
// summary and handler. Each resource has a file with its rows and handlers. The door admits a request by its row, a handler gets the
// admitted call, and a view hides secrets from its caller.
//
// Commands go to the runner, reads to the store. Ids are strings in JSON, and an error is always
// {"code","message","detail","request_id"} with a code that programs may rely on.
//
// [Options].Authenticate returns the sender of a request: sessions of the host's own, [TokenFile],
// [KeysFile] or [TrustedProxies]; without it Mount panics, unless InsecureAllowAll lets every request do everything. What a
// principal may do follows from its roles, see docs/reference.md; permissions for own jobs only get 404 for others'.
package api
