package api

import (
	"bytes"
	"cmp"
	"context"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/labstack/echo/v4"

	"github.com/trapeze-run/trapeze/internal/access"
	"github.com/trapeze-run/trapeze/internal/store"
	storeview "github.com/trapeze-run/trapeze/internal/store/view"
	"github.com/trapeze-run/trapeze/internal/text"
	"github.com/trapeze-run/trapeze/runner"
	"github.com/trapeze-run/trapeze/runner/admin"
)

// service holds the handlers' dependencies.
type service struct {
	r       *runner.Runner
	lists   *store.Store // for potentially slow reads, to keep them from delaying commands
	opts    Options
	door    *door
	secrets *secrets
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
	if p := problemOf(err); s.opts.OnFailure != nil && p.Status >= clientClosedRequest {
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

// admin returns the commands of the caller as an operator.
func (c *call) admin() admin.Admin { return c.r.Admin(c.caller.Name) }

// now returns the database's time, which a relative time in a request refers to. If the request's time is empty, now returns zero.
func (c *call) now(since string) (time.Time, error) {
	if since == "" {
		return time.Time{}, nil
	}
	return storeview.Now(c.ctx(), c.lists)
}

// present returns jobs, pipelines or schedules without the secrets that the caller may not see.
func (c *call) present(what any) (any, error) {
	return c.secrets.present(c.Request(), c.caller, what)
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

// withBody returns a handler that reads a required JSON body.
func withBody[T any](do func(c *call, body T) (any, error)) handler {
	return func(c *call) (any, error) {
		body, err := readBody[T](c)
		if err != nil {
			return nil, err
		}
		return do(c, body)
	}
}

// readOptional is like [readBody], but an empty body leaves the zero value.
func readOptional[T any](c *call) (body T, err error) {
	raw, err := io.ReadAll(c.Request().Body)
	if err != nil || len(raw) == 0 {
		return body, err
	}
	c.Request().Body = io.NopCloser(bytes.NewReader(raw))
	return readBody[T](c)
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
			err = invalid("wait %q: want seconds, or a duration such as 30s", text)
		}
	}
	if wait := time.Duration(body.Wait); err == nil && (wait < 0 || wait > maxWait) {
		err = invalid("wait %s: want 0 to %s per request; repeat the request to wait longer", wait, maxWait)
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

// waits returns a handler for a command that closes a lane, a pod or the queue, and waits for the jobs running there to finish.
func waits[T any](do func(c *call, wait time.Duration) (T, error)) handler {
	return func(c *call) (any, error) {
		wait, err := c.waitLimit()
		if err != nil {
			return nil, err
		}
		return do(c, wait)
	}
}

// toggle handles a command that reopens a lane, a pod or the queue, or closes it without waiting.
func toggle(c *call, do func(context.Context) (bool, error)) (any, error) {
	if err := c.refuseBody(); err != nil {
		return nil, err
	}
	did, err := do(c.ctx())
	return changed{did}, err
}

// toggleOne is like [toggle], but for the lane, pod or schedule named in the path.
func toggleOne(c *call, name string, do func(ctx context.Context, name string) (bool, error)) (any, error) {
	return toggle(c, func(ctx context.Context) (bool, error) { return do(ctx, name) })
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

// unescape unescapes the path parameters. The router leaves them escaped if the path contains an escaped slash.
func unescape(c echo.Context) {
	if c.Request().URL.RawPath == "" {
		return
	}
	values := c.ParamValues()
	for i, name := range c.ParamNames() {
		if meant, err := url.PathUnescape(values[i]); err == nil && name != "*" {
			values[i] = meant
		}
	}
	c.SetParamValues(values...)
}

// checkText rejects a query that cannot be parsed completely, and text in a path or query that PostgreSQL cannot store, so individual
// routes need not check for either. It is strict because the standard library drops the parts of a query that it cannot parse: without the
// check, ?dry_run=true; would make a real change.
func checkText(c echo.Context) error {
	query, err := url.ParseQuery(c.Request().URL.RawQuery)
	if err != nil {
		return &problem{Status: http.StatusBadRequest, Code: "invalid_query", Message: "invalid query string",
			Detail: "separate parameters with &, and encode ; and % as %3B and %25: " + err.Error()}
	}
	texts := c.ParamValues()
	for _, values := range query {
		texts = append(texts, values...)
	}
	for _, text := range texts {
		if !utf8.ValidString(text) || strings.ContainsRune(text, 0) {
			return &problem{Status: http.StatusBadRequest, Code: "invalid_text", Message: errText.Error(),
				Detail: "the path or the query contains invalid UTF-8 or a NUL character"}
		}
	}
	return nil
}

// eachFilter calls read for every filter in a list request, with the filter's last value and all its values.
func eachFilter(c echo.Context, read func(name, value string, values []string) error) error {
	for name, values := range c.QueryParams() {
		if err := read(name, values[len(values)-1], values); err != nil {
			return invalid("filter %s: %s", name, err)
		}
	}
	return nil
}

// limitOf parses the limit parameter.
func limitOf(c echo.Context, usual int) (int, error) {
	given := c.QueryParam("limit")
	if given == "" {
		return usual, nil
	}
	limit, err := text.ParseLimit(given)
	if err != nil {
		err = invalid("limit: %s", err)
	}
	return limit, err
}

// boolParam parses a boolean query parameter.
func boolParam(c echo.Context, name string) (bool, error) {
	text := c.QueryParam(name)
	if text == "" {
		return false, nil
	}
	yes, err := strconv.ParseBool(text)
	if err != nil {
		return false, invalid("%s %q: want true or false", name, text)
	}
	return yes, nil
}

func idText(id int64) string { return strconv.FormatInt(id, 10) }

func idTexts(ids []int64) []string {
	list := make([]string, len(ids))
	for i, id := range ids {
		list[i] = idText(id)
	}
	return list
}
