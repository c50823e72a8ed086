package api

import (
	"context"
	"errors"
	"io"
	"net/http"
	"time"

	"github.com/trapeze-run/trapeze/api/internal/response"
	"github.com/trapeze-run/trapeze/internal/access"
	"github.com/trapeze-run/trapeze/internal/feed"
	"github.com/trapeze-run/trapeze/internal/inside"
	"github.com/trapeze-run/trapeze/internal/store"
)

var streamRoutes = []Route{
	{Method: http.MethodGet, Path: "/jobs/:id/stream", Needs: access.JobsRead, scope: jobInPath,
		Summary: "Watch a job until it has finished (server-sent events)", query: []string{"after"}, media: eventStream,
		do: streamOf((*feed.Feed).Job)},
	{Method: http.MethodGet, Path: "/pipelines/:id/stream", Needs: access.JobsRead, scope: jobInPath,
		Summary: "Watch all jobs of a pipeline until it has finished (server-sent events)", query: []string{"after"}, media: eventStream,
		do: streamOf((*feed.Feed).Pipeline)},
	{Method: http.MethodGet, Path: "/events/stream", Needs: access.JobsRead, scope: ownJobs,
		Summary: "Watch all jobs (server-sent events)", query: []string{"after"}, media: eventStream,
		do: serveStream(func(c *call, after string) (*feed.Stream, error) {
			return inside.Of(c.r).Feed.All(c.ctx(), c.caller.Owner(access.JobsRead), after)
		})},
}

const eventStream = "text/event-stream"

// streamOf returns a handler that serves a job's or pipeline's stream.
func streamOf(open func(from *feed.Feed, ctx context.Context, id int64, after string) (*feed.Stream, error)) handler {
	return onJob(func(c *call, id int64) (any, error) {
		return serveStream(func(c *call, after string) (*feed.Stream, error) {
			return open(inside.Of(c.r).Feed, c.ctx(), id, after)
		})(c)
	})
}

// serveStream returns a handler that serves the stream returned by open until the stream ends or the client disconnects. Errors can be
// reported only before the stream begins.
func serveStream(open func(c *call, after string) (*feed.Stream, error)) handler {
	return func(c *call) (any, error) {
		if err := checkFlush(c.Response().Writer); err != nil {
			return nil, err
		}
		release, err := c.streams.enter(c.caller.Name, c.opts.Streams)
		if err != nil {
			return nil, err
		}
		defer release()
		after := c.QueryParam("after")
		if last := c.Request().Header.Get("Last-Event-ID"); last != "" {
			after = last // sent by a reconnecting client; newer than the cursor in the URL
		}
		watched, err := open(c, after)
		if errors.Is(err, feed.ErrClosing) || errors.Is(err, feed.ErrStuck) {
			return nil, &response.Problem{Status: http.StatusServiceUnavailable, Code: "unavailable", Message: err.Error(), Err: err}
		}
		if err != nil {
			return nil, err
		}
		defer watched.Close()
		snapshot, err := c.present(watched.Snapshot)
		if err != nil {
			return nil, err
		}
		out := newSSE(c, c.opts.Streams.WriteWithin)
		if err := follow(c, out, watched, snapshot); errors.Is(err, errSlowClient) {
			watched.Dropped()
		}
		return nil, nil // the stream has begun, so an error can no longer be reported
	}
}

// stillAllowed reports whether the caller may still read its stream. A token may have expired, or a role may have been revoked, since the
// stream began.
func (c *call) stillAllowed() bool {
	p, err := c.door.recheck(c, c.route)
	if err == nil {
		return p.Owner(access.JobsRead) == c.caller.Owner(access.JobsRead)
	}
	return response.ProblemOf(err).Status >= http.StatusInternalServerError // if the check itself failed, continue the stream
}

// recheckInterval is the interval at which the permission of a stream's reader is rechecked, unless twice the keep-alive is shorter.
const recheckInterval = 3 * time.Second

// follow writes a stream that starts with a snapshot, without the secrets that the reader may not see.
func follow(c *call, out *sse, watched *feed.Stream, snapshot any) error {
	if err := out.begin(watched, snapshot); err != nil {
		return err
	}
	keepAlive := c.opts.Streams.KeepAlive
	recheck := min(2*keepAlive, recheckInterval)
	for checked, wrote := time.Now(), time.Now(); ; {
		list, err := watched.Next(c.ctx(), min(recheck, max(0, keepAlive-time.Since(wrote))))
		if c.ctx().Err() != nil || errors.Is(err, io.EOF) {
			return nil
		}
		if time.Since(checked) >= recheck {
			if !c.stillAllowed() {
				out.comment("permission revoked")
				return out.flush()
			}
			checked = time.Now()
		}
		for _, item := range list {
			out.writeEvent(item)
		}
		switch {
		case err != nil:
			out.comment(why(err))
			return out.flush()
		case len(list) == 0 && time.Since(wrote) < keepAlive:
			continue
		case len(list) == 0:
			out.comment("keep-alive")
		}
		if err := out.flush(); err != nil {
			return err
		}
		wrote = time.Now()
	}
}

// why returns the reason for the client to reconnect.
func why(err error) string {
	for _, known := range []error{feed.ErrClosing, feed.ErrSlow, feed.ErrMoved, feed.ErrStuck} {
		if errors.Is(err, known) {
			return known.Error()
		}
	}
	if store.Full(err) {
		return "the database server has no free connection"
	}
	return "the database does not respond"
}
