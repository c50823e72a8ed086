// Package api is Trapeze's HTTP door: submit jobs, look at them, end them, and ask a pod how it is. [Mount] puts it under
// any prefix of a host's own echo:
//
//	POST   /jobs                              202, with an Idempotency-Key if the answer may get lost
//	GET    /jobs                              a page, newest first: state kind lane subject pipeline parent since limit cursor
//	GET    /jobs/:id                          one job
//	GET    /jobs/:id/events                   its history
//	POST   /jobs/:id/cancel                   end it; a job that has ended already is only shown
//	POST   /admin/workers/jobs/:id/cancel     as above, but 409 when it has ended already
//	POST   /admin/workers/jobs/:id/stop       end it at once, whatever its handler does
//	GET    /events                            the history of everything, after a cursor; /pipelines/:id/events of a pipeline
//	GET    /admin/export/jobs|events          everything, one JSON object a line, from one snapshot
//	GET    /healthz                           the process is there; asks no database
//	GET    /readyz                            this pod may take work; 503 with the reasons when not
//	GET    /metrics                           Prometheus
//
// Commands go to the runner, reads to the store. Ids are strings in JSON, and an error is always
// {"code","message","detail","request_id"} with a code that programs may rely on.
//
// There are no permissions: bind a loopback address, or let the host's own middleware decide who may come here.
package api
