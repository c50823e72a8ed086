package api

import (
	"cmp"
	"context"
	"net/http"
	"slices"
	"time"

	"github.com/labstack/echo/v4"

	"github.com/trapeze-run/trapeze/internal/access"
	"github.com/trapeze-run/trapeze/internal/cursor"
	"github.com/trapeze-run/trapeze/internal/store"
	"github.com/trapeze-run/trapeze/runner"
)

// service holds the dependencies of the handlers.
type service struct {
	r       *runner.Runner
	lists   *store.Store // for reads that may be long or slow, so that they do not delay commands
	opts    Options
	door    *door
	secrets *secrets
	streams openStreams
	logins  *buckets
	openapi []byte // the document
}

// cutOff reports whether the pod has lost trust in its lease, because its heartbeats fail. A connection of such a pod may still answer, from
// a standby or from a former primary, with outdated data.
func (s *service) cutOff() bool {
	_, reasons := s.r.Ready()
	return slices.Contains(reasons, runner.ReasonCutOff)
}

// reportFailure hands the error behind an answer to the host.
func (s *service) reportFailure(request *http.Request, err error) {
	if p := problemOf(err); s.opts.OnFailure != nil && p.status >= clientClosedRequest {
		s.opts.OnFailure(request, cmp.Or(p.err, err))
	}
}

// call is a request that its route has let through.
type call struct {
	echo.Context
	*service

	to     Route
	caller access.Principal // its sender; without any permission on a route that needs none
}

func (c *call) ctx() context.Context { return c.Request().Context() }

// present returns jobs, pipelines or schedules as the caller may see them.
func (c *call) present(what any) (any, error) {
	return c.secrets.present(c.Request(), c.caller, what)
}

// presentPage returns a page of jobs or pipelines as the caller may see them. searched is the time back to which the search went before
// it stopped early; zero: it did not.
func (c *call) presentPage(name string, found any, next string, searched time.Time) (any, error) {
	shown, err := c.present(found)
	body := map[string]any{name: shown, "next_cursor": cursor.Sealed(name, next)}
	if !searched.IsZero() {
		body["searched_to"] = searched
	}
	return body, err
}

// readBody reads a required JSON body.
func readBody[T any](c *call) (body T, err error) {
	err = readJSON(c, &body)
	return body, err
}

// readOptional reads an optional JSON body.
func readOptional[T any](c *call) (body T, err error) {
	err = optional(c, &body)
	return body, err
}

// dryRun reports whether a request only previews its effect.
func (c *call) dryRun() (bool, error) { return boolParam(c, "dry_run") }

// maxWait limits how long a request may wait until no job runs: servers and proxies allow an answer more time.
const maxWait = 50 * time.Second

// waitLimit reads how long a command waits until no job runs, from {"wait":"30s"} or the query; 0 means not at all.
func (c *call) waitLimit() (time.Duration, error) {
	body, err := readOptional[struct {
		Wait Delay `json:"wait"`
	}](c)
	if text := c.QueryParam("wait"); err == nil && text != "" {
		if bad := body.Wait.UnmarshalJSON([]byte(text)); bad != nil {
			err = invalid("wait %q: want seconds, or a duration such as 30s", text)
		}
	}
	if wait := time.Duration(body.Wait); err == nil && (wait < 0 || wait > maxWait) {
		err = invalid("wait %s: want 0 to %s per request; repeat the request to wait longer", wait, maxWait)
	}
	return time.Duration(body.Wait), err
}

// refuseBody returns an error for a body on a route that takes none.
func (c *call) refuseBody() error {
	_, err := readOptional[struct{}](c)
	return err
}

// onJob returns a handler for the job or pipeline whose id is in the path.
func onJob(do func(c *call, id int64) (any, error)) handler {
	return func(c *call) (any, error) {
		id, err := jobID(c.Param("id"))
		if err != nil {
			return nil, err
		}
		return do(c, id)
	}
}

// drain answers a command that closes a lane, a pod or the queue and waits until no job runs there.
func drain[T any](c *call, do func(wait time.Duration) (T, error)) (any, error) {
	wait, err := c.waitLimit()
	if err != nil {
		return nil, err
	}
	return do(wait)
}

// toggle answers a command that reopens a lane, a pod or the queue, or closes it without waiting.
func toggle(c *call, do func(ctx context.Context, actor string) (bool, error)) (any, error) {
	if err := c.refuseBody(); err != nil {
		return nil, err
	}
	did, err := do(c.ctx(), c.caller.Name)
	return changed{did}, err
}

// toggleOne is [toggle] for the lane, pod or schedule that the path names.
func toggleOne(c *call, name string, do func(ctx context.Context, name, actor string) (bool, error)) (any, error) {
	return toggle(c, func(ctx context.Context, actor string) (bool, error) { return do(ctx, name, actor) })
}

// reply is an answer whose status is not the route's usual one.
type reply struct {
	status int
	body   any
}

// changed is the answer of a [toggle].
type changed struct {
	Changed bool `json:"changed"` // false: it was in that state before
}

// pageOf returns a page of a list. A full page has the cursor of the next page, which its last row determines.
func pageOf[T any](name string, list []T, limit int, cursor func(last T) string) map[string]any {
	next := ""
	if len(list) == limit {
		next = cursor(list[len(list)-1])
	}
	return map[string]any{name: orEmpty(list), "next_cursor": next}
}

// orEmpty returns a list that is [] in JSON, not null.
func orEmpty[T any](list []T) []T {
	if list == nil {
		return []T{}
	}
	return list
}
