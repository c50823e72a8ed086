package api

import (
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"net/http"
	"strconv"
	"sync"
	"time"

	"github.com/labstack/echo/v4"

	"github.com/trapeze-run/trapeze/internal/access"
	"github.com/trapeze-run/trapeze/internal/feed"
)

var streamRoutes = []Route{
	{http.MethodGet, "/jobs/:id/stream", access.JobsRead, "Watch a job until it has ended (server-sent events)", (*server).streamJob},
	{http.MethodGet, "/pipelines/:id/stream", access.JobsRead, "Watch all jobs of a pipeline until it is over (server-sent events)", (*server).streamPipeline},
	{http.MethodGet, "/events/stream", access.JobsRead, "Watch everything (server-sent events)", (*server).streamAll},
}

// StreamOptions bound live streams. The zero value works.
type StreamOptions struct {
	// Most is how many streams this pod serves at once; one more is answered with 503. Default 10,000.
	Most int
	// MostEach is how many of them one principal may have; one more is answered with 429. Default: no fewer.
	MostEach int
	// KeepAlive is how long a stream is silent at most, and half of the time after which it is asked anew whether its reader may read it.
	// Default 15s, at most 25s.
	KeepAlive time.Duration
	// WriteWithin is how long a client may take to accept what is written before it is dropped. Default 10s.
	WriteWithin time.Duration
}

func (o StreamOptions) withDefaults() StreamOptions {
	if o.Most <= 0 {
		o.Most = 10_000
	}
	if o.MostEach <= 0 {
		o.MostEach = o.Most
	}
	if o.KeepAlive <= 0 {
		o.KeepAlive = 15 * time.Second
	}
	o.KeepAlive = min(o.KeepAlive, 25*time.Second) // who may read no more, reads no more after a minute
	if o.WriteWithin <= 0 {
		o.WriteWithin = 10 * time.Second
	}
	return o
}

func (s *server) streamJob(c echo.Context) error {
	id, err := idOf(c)
	if err != nil {
		return err
	}
	return s.stream(c, "/jobs/:id/stream", func(ctx context.Context, after string) (*feed.Stream, error) {
		return s.r.Feed().Job(ctx, id, after)
	})
}

func (s *server) streamPipeline(c echo.Context) error {
	id, err := idOf(c)
	if err != nil {
		return err
	}
	return s.stream(c, "/pipelines/:id/stream", func(ctx context.Context, after string) (*feed.Stream, error) {
		return s.r.Feed().Pipeline(ctx, id, after)
	})
}

func (s *server) streamAll(c echo.Context) error {
	return s.stream(c, "/events/stream", func(ctx context.Context, after string) (*feed.Stream, error) {
		return s.r.Feed().All(ctx, caller(c).Owner(access.JobsRead), after)
	})
}

// stream answers with what open opens, until it is over or the client has gone. What is wrong is answered before it begins.
func (s *server) stream(c echo.Context, path string, open func(ctx context.Context, after string) (*feed.Stream, error)) error {
	release, err := s.streams.enter(caller(c).Name, s.opts.Streams)
	if err != nil {
		c.Response().Header().Set("Retry-After", strconv.Itoa(1+rand.IntN(5))) // #nosec G404 -- not everybody at once
		return err
	}
	defer release()
	after := c.QueryParam("after")
	if last := c.Request().Header.Get("Last-Event-ID"); last != "" {
		after = last // of a client that comes back: newer than what its address says
	}
	watched, err := open(c.Request().Context(), after)
	if errors.Is(err, feed.ErrClosing) || errors.Is(err, feed.ErrStuck) {
		return &problem{status: http.StatusServiceUnavailable, code: "unavailable", message: err.Error(), err: err}
	}
	if err != nil {
		return err
	}
	defer watched.Close()
	snapshot, err := s.present(c, watched.Snapshot)
	if err != nil {
		return err
	}
	out := newSSE(c, s.opts.Streams.WriteWithin)
	if err := s.tell(c, path, out, watched, snapshot); errors.Is(err, errNotTaken) {
		watched.Dropped()
	}
	return nil // it has begun: there is nobody to tell what went wrong
}

// mayGoOn reports whether who opened a stream may still read what he is told: his token may have ended, or a grant been taken back.
func (s *server) mayGoOn(c echo.Context, path string) bool {
	err := s.recheck(c, Route{Method: http.MethodGet, Path: path, Needs: access.JobsRead})
	if err == nil {
		var p Principal
		if p, err = s.who(c.Request()); err == nil && p.Owner(access.JobsRead) != caller(c).Owner(access.JobsRead) {
			return false
		}
	}
	return err == nil || problemOf(err).status >= http.StatusInternalServerError // the database does not say
}

// tell writes a stream from its snapshot on, which is shown as its reader may see it.
func (s *server) tell(c echo.Context, path string, out *sse, watched *feed.Stream, snapshot any) error {
	ctx := c.Request().Context()
	if err := out.begin(watched, snapshot); err != nil {
		return err
	}
	for asked := time.Now(); ; {
		list, err := watched.Next(ctx, s.opts.Streams.KeepAlive)
		if ctx.Err() != nil || errors.Is(err, io.EOF) {
			return nil
		}
		if time.Since(asked) >= 2*s.opts.Streams.KeepAlive {
			if !s.mayGoOn(c, path) {
				out.comment("you may not read this any more")
				return out.flush()
			}
			asked = time.Now()
		}
		for _, item := range list {
			out.event(item)
		}
		switch {
		case err != nil:
			out.comment(why(err))
			return out.flush()
		case len(list) == 0:
			out.comment("still here")
		}
		if err := out.flush(); err != nil {
			return err
		}
	}
}

// why is what a client is told that is to come back.
func why(err error) string {
	for _, known := range []error{feed.ErrClosing, feed.ErrSlow, feed.ErrMoved, feed.ErrStuck} {
		if errors.Is(err, known) {
			return known.Error()
		}
	}
	return "the database does not answer"
}

// openStreams counts the streams that are open.
type openStreams struct {
	mu  sync.Mutex
	all int
	of  map[string]int
}

// enter counts one more, or says that there are too many.
func (o *openStreams) enter(principal string, limit StreamOptions) (release func(), err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	switch {
	case o.all >= limit.Most:
		return nil, &problem{status: http.StatusServiceUnavailable, code: "unavailable", message: "this pod serves as many streams as it may"}
	case o.of[principal] >= limit.MostEach:
		return nil, &problem{status: http.StatusTooManyRequests, code: "rate_limited", message: "you have as many streams as you may"}
	}
	if o.of == nil {
		o.of = map[string]int{}
	}
	o.all++
	o.of[principal]++
	return func() {
		o.mu.Lock()
		defer o.mu.Unlock()
		o.all--
		if o.of[principal]--; o.of[principal] == 0 {
			delete(o.of, principal)
		}
	}, nil
}
