package api

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"strings"
	"syscall"
	"time"

	"github.com/labstack/echo/v4"

	"github.com/trapeze-run/trapeze/internal/access"
	"github.com/trapeze-run/trapeze/internal/feed"
	"github.com/trapeze-run/trapeze/internal/inside"
	"github.com/trapeze-run/trapeze/internal/store"
	"github.com/trapeze-run/trapeze/internal/text"
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
			return nil, &problem{Status: http.StatusServiceUnavailable, Code: "unavailable", Message: err.Error(), Err: err}
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
	return problemOf(err).Status >= http.StatusInternalServerError // if the check itself failed, continue the stream
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

// errSlowClient ends a stream whose client does not read it.
var errSlowClient = errors.New("the client does not read its stream")

// sse writes server-sent events to a buffer. flush sends them.
type sse struct {
	to     http.ResponseWriter
	ctl    *http.ResponseController
	within time.Duration
	err    error
}

// checkFlush returns an error if a response writer of the host's middleware cannot flush. Such a writer delivers a stream only at its end. A
// writer with an Unwrap method may pass its data to one that cannot flush, so the check includes every writer of the chain.
func checkFlush(w http.ResponseWriter) error {
	for {
		_, flushes := w.(http.Flusher)
		_, reports := w.(interface{ FlushError() error })
		inner, wraps := w.(interface{ Unwrap() http.ResponseWriter })
		if !flushes && !reports && !wraps {
			err := fmt.Errorf("cannot stream: middleware of the host program replaces the response writer by a %T, which cannot flush", w)
			return &problem{Status: http.StatusInternalServerError, Code: "internal", Message: err.Error(), Err: err,
				Detail: "add an Unwrap method to the writer, or exclude the API's prefix from the middleware (for example http.TimeoutHandler)"}
		}
		if !wraps {
			return nil
		}
		w = inner.Unwrap()
	}
}

// newSSE starts the response. The server's deadlines are meant for responses that end, so each write has a separate deadline instead.
func newSSE(c echo.Context, within time.Duration) *sse {
	s := &sse{to: c.Response(), ctl: http.NewResponseController(c.Response().Writer), within: within}
	_ = s.ctl.SetReadDeadline(time.Time{})
	shrink(c.Request(), within)
	h := c.Response().Header()
	h.Set("Content-Type", "text/event-stream")
	h.Set("Cache-Control", "no-store")
	h.Set("X-Accel-Buffering", "no") // disables buffering in nginx
	c.Response().WriteHeader(http.StatusOK)
	return s
}

// printf writes to the buffers. If they are full, it waits at most s.within for the client to read.
func (s *sse) printf(format string, args ...any) {
	if s.err == nil {
		_ = s.ctl.SetWriteDeadline(time.Now().Add(s.within))
		_, s.err = fmt.Fprintf(s.to, format, args...)
	}
}

// oneLine replaces line breaks in event names chosen by handlers, because they would break the stream format.
var oneLine = strings.NewReplacer("\n", " ", "\r", " ", "\x00", " ")

func (s *sse) writeEvent(i feed.Item) {
	if i.ID != "" {
		s.printf("id: %s\n", i.ID)
	}
	s.printf("event: %s\ndata: %s\n\n", oneLine.Replace(i.Event), i.Data)
}

func (s *sse) comment(text string) { s.printf(": %s\n\n", text) }

// begin starts a stream with a snapshot of the watched job or pipeline, without the secrets that the reader may not see.
func (s *sse) begin(watched *feed.Stream, seen any) error {
	snapshot, err := text.JSON(seen)
	if err != nil {
		return err
	}
	again := time.Second + rand.N(2*time.Second) // #nosec G404 -- jitter, so that clients do not all reconnect at once
	s.printf("retry: %d\n\n", again.Milliseconds())
	if watched.Reset != "" {
		reason, err := json.Marshal(map[string]string{"reason": watched.Reset})
		if err != nil {
			return err
		}
		s.writeEvent(feed.Item{Event: "reset", Data: reason})
	}
	s.writeEvent(feed.Item{ID: watched.Cursor, Event: "snapshot", Data: snapshot})
	return s.flush()
}

// flush sends the buffered events. It returns errSlowClient if the client does not read them in time.
func (s *sse) flush() error {
	if s.err == nil {
		s.err = s.ctl.Flush()
	}
	if errors.Is(s.err, os.ErrDeadlineExceeded) || errors.Is(s.err, syscall.ETIMEDOUT) {
		return errSlowClient
	}
	return s.err
}

type connKey struct{}

// ConnContext is meant to be used as http.Server.ConnContext. It gives the API access to the connection of a stream, so that the API can
// limit the kernel buffers and quickly detect a client that does not read. Without it, megabytes may be buffered before the API notices.
func ConnContext(ctx context.Context, c net.Conn) context.Context {
	return context.WithValue(ctx, connKey{}, c)
}

// streamBuffer is the size of a stream's send buffer in the kernel.
const streamBuffer = 64 << 10

// shrink limits a stream's kernel buffers and the time for which sent data may stay unacknowledged.
func shrink(request *http.Request, within time.Duration) {
	conn, ok := request.Context().Value(connKey{}).(net.Conn)
	if !ok || request.ProtoMajor != 1 {
		return // an HTTP/2 connection is shared with other requests
	}
	if secured, ok := conn.(interface{ NetConn() net.Conn }); ok {
		conn = secured.NetConn()
	}
	if tcp, ok := conn.(*net.TCPConn); ok {
		_ = tcp.SetWriteBuffer(streamBuffer)
		answerWithin(tcp, 2*within)
	}
}
