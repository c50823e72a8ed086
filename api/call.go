package api

import (
	"cmp"
	"context"
	"net/http"
	"slices"
	"time"

	"github.com/labstack/echo/v4"

	"github.com/trapeze-run/trapeze/api/internal/response"
	"github.com/trapeze-run/trapeze/internal/access"
	"github.com/trapeze-run/trapeze/internal/store"
	storeview "github.com/trapeze-run/trapeze/internal/store/view"
	"github.com/trapeze-run/trapeze/internal/text"
	"github.com/trapeze-run/trapeze/runner"
)

// service holds the handlers' dependencies.
type service struct {
	r       *runner.Runner
	lists   *store.Store // for potentially slow reads, to keep them from delaying commands
	opts    Options
	door    *door
	secrets *response.Secrets
	streams openStreams
	logins  *buckets
	openapi func() ([]byte, error) // returns the encoded OpenAPI document, which is created by the first call
}

// cutOff reports whether the pod no longer trusts its lease because its heartbeats fail. The pod may then be connected to a standby or a
// former primary, and would serve stale data.
func (s *service) cutOff() bool {
	_, reasons := s.r.Ready()
	return slices.Contains(reasons, runner.ReasonCutOff)
}

// reportFailure passes the error behind a failed response to Options.OnFailure.
func (s *service) reportFailure(request *http.Request, err error) {
	if p := response.ProblemOf(err); s.opts.OnFailure != nil && p.Status >= response.ClientClosedRequest {
		s.opts.OnFailure(request, cmp.Or(p.Err, err))
	}
}

// call is an admitted request.
type call struct {
	echo.Context
	*service

	route  Route
	caller access.Principal // the authenticated sender; without permissions if the route needs none
}

func (c *call) ctx() context.Context { return c.Request().Context() }

// now returns the database's time, which a relative time in a request refers to. If the request's time is empty, now returns zero.
func (c *call) now(since string) (time.Time, error) {
	if since == "" {
		return time.Time{}, nil
	}
	return storeview.Now(c.ctx(), c.lists)
}

// present returns jobs, pipelines or schedules without the secrets that the caller may not see.
func (c *call) present(what any) (any, error) {
	return c.secrets.Present(c.Request(), c.caller, what)
}

// presentPage returns a page of jobs or pipelines without the secrets that the caller may not see. If a search stopped early, searched is
// how far back it got; otherwise it is zero.
func (c *call) presentPage(name string, found any, next string, searched time.Time) (any, error) {
	shown, err := c.present(found)
	body := map[string]any{name: shown, "next_cursor": text.EncodeCursor(name, next)}
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

// dryRun reports whether the request asks only for a preview of its effect.
func (c *call) dryRun() (bool, error) { return boolParam(c, "dry_run") }

// maxWait limits how long a request may wait for running jobs to finish. It is shorter than the usual response timeouts of servers and
// proxies.
const maxWait = 50 * time.Second

// waitLimit returns how long a command waits for running jobs to finish. The caller sets it with a body such as {"wait":"30s"} or with the
// wait query parameter. Zero means not to wait.
func (c *call) waitLimit() (time.Duration, error) {
	body, err := readOptional[struct {
		Wait Delay `json:"wait"`
	}](c)
	if text := c.QueryParam("wait"); err == nil && text != "" {
		if bad := body.Wait.UnmarshalJSON([]byte(text)); bad != nil {
			err = response.Invalid("wait %q: want seconds, or a duration such as 30s", text)
		}
	}
	if wait := time.Duration(body.Wait); err == nil && (wait < 0 || wait > maxWait) {
		err = response.Invalid("wait %s: want 0 to %s per request; repeat the request to wait longer", wait, maxWait)
	}
	return time.Duration(body.Wait), err
}

// refuseBody returns an error if a request has a body.
func (c *call) refuseBody() error {
	_, err := readOptional[struct{}](c)
	return err
}

// onJob returns a handler for the job or pipeline whose ID is in the path.
func onJob(do func(c *call, id int64) (any, error)) handler {
	return func(c *call) (any, error) {
		id, err := text.ParseJobID(c.Param("id"))
		if err != nil {
			return nil, err
		}
		return do(c, id)
	}
}

// drain handles a command that closes a lane, a pod or the queue, and waits for the jobs running there to finish.
func drain[T any](c *call, do func(wait time.Duration) (T, error)) (any, error) {
	wait, err := c.waitLimit()
	if err != nil {
		return nil, err
	}
	return do(wait)
}

// toggle handles a command that reopens a lane, a pod or the queue, or closes it without waiting.
func toggle(c *call, do func(ctx context.Context, actor string) (bool, error)) (any, error) {
	if err := c.refuseBody(); err != nil {
		return nil, err
	}
	did, err := do(c.ctx(), c.caller.Name)
	return changed{did}, err
}

// toggleOne is like [toggle], but for the lane, pod or schedule named in the path.
func toggleOne(c *call, name string, do func(ctx context.Context, name, actor string) (bool, error)) (any, error) {
	return toggle(c, func(ctx context.Context, actor string) (bool, error) { return do(ctx, name, actor) })
}

// reply is a response whose status differs from the route's default.
type reply struct {
	status int
	body   any
}

// changed is the response to a [toggle] command.
type changed struct {
	Changed bool `json:"changed"` // false if the target was already in the requested state
}

// pageOf returns one page of a list. A full page includes the next page's cursor, which is taken from the last row.
func pageOf[T any](name string, list []T, limit int, cursor func(last T) string) map[string]any {
	next := ""
	if len(list) == limit {
		next = cursor(list[len(list)-1])
	}
	return map[string]any{name: orEmpty(list), "next_cursor": next}
}

// orEmpty replaces a nil list with an empty one, so that it is encoded as [] instead of null.
func orEmpty[T any](list []T) []T {
	if list == nil {
		return []T{}
	}
	return list
}
