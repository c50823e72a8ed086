// Package server serves remote workers: programs without a database that run jobs. It speaks standard gRPC on net/http, so that it is
// mounted beside the HTTP API, on the port of the pod.
//
//	worker ──StreamJobs──▶ pod   a session claims for the free slots of the worker, and sends the jobs down the stream
//	       ──Heartbeat───▶       renews the lease, acknowledges jobs, brings progress and fetches cancels
//	       ──ReportResult▶       ends a claim; answered when that is committed
//
// It decides nothing about jobs: the engine of the session does (remote/host), with the statements and fences that jobs of the pod have.
package server

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"time"

	"connectrpc.com/connect"
	"golang.org/x/time/rate"

	"github.com/trapeze-run/trapeze/internal/inside"
	"github.com/trapeze-run/trapeze/remote/host"
	"github.com/trapeze-run/trapeze/remote/remotepb"
	"github.com/trapeze-run/trapeze/runner"
)

// Options configure [Handler].
type Options struct {
	// Authenticate finds out who sends a request, and what he may run. Its error is the answer: one that is no connect error is
	// UNAUTHENTICATED, and its text is not told.
	Authenticate func(*http.Request) (Caller, error)
	// CallsPerSecond and CallsBurst bound the calls of one principal on this pod. Default 5,000 and 10,000.
	CallsPerSecond float64
	CallsBurst     int
	// MaxBytes bounds a message. Default 16 MiB: a result of 1 MiB, and the children of a fan-out.
	MaxBytes int
	// MostStreams bounds the workers of one principal on this pod. Default 1,000: each has a row, and looks for jobs.
	MostStreams int
	// OpensPerSecond bounds how often one principal opens a stream on this pod, which costs it more than other calls; after a rest it may be
	// twice MostStreams at once, for all workers come when another pod has gone. Default 100.
	OpensPerSecond float64
	// AskAgainEvery is how often it is asked again whether who opened a stream may still run its jobs: his token may have ended, or be bound
	// otherwise. Then something is sent, too, to workers that understand nudges: proxies end streams on which nothing comes. Default 15 s.
	AskAgainEvery time.Duration
	// SendWithin is how long it may take until the network has taken a job. The stream of a worker that does not read ends then. Default 10 s.
	SendWithin time.Duration
}

// Caller is who speaks for a worker.
type Caller struct {
	Name string                 // the principal: nobody else may speak for its workers
	Kind func(name string) bool // which kinds it may run; nil: all
	Lane func(name string) bool // from which lanes; nil: all

	// Refused is told that it asked for a kind that it may not run; nil: nobody is.
	Refused func(why string)
}

type server struct {
	host *host.Host
	opts Options

	mu      sync.Mutex
	calls   map[string]*rate.Limiter // by principal
	opens   map[string]*rate.Limiter // of streams
	streams map[string]int           // that are open, by principal
}

// Handler returns the path that the service is mounted under and its handler. HTTP/2 is needed: over TLS, or in clear text on loopback.
func Handler(r *runner.Runner, o Options) (path string, handler http.Handler) {
	if o.Authenticate == nil {
		panic("remote/server: no authentication: set Options.Authenticate")
	}
	if o.CallsPerSecond <= 0 {
		o.CallsPerSecond = 5000
	}
	if o.CallsBurst <= 0 {
		o.CallsBurst = 10_000
	}
	if o.MaxBytes <= 0 {
		o.MaxBytes = 16 << 20
	}
	if o.MostStreams <= 0 {
		o.MostStreams = 1000
	}
	if o.OpensPerSecond <= 0 {
		o.OpensPerSecond = 100
	}
	if o.AskAgainEvery <= 0 {
		o.AskAgainEvery = 15 * time.Second
	}
	if o.SendWithin <= 0 {
		o.SendWithin = 10 * time.Second
	}
	s := &server{host: host.Of(inside.Of(r).Pod), opts: o, calls: map[string]*rate.Limiter{}, opens: map[string]*rate.Limiter{}, streams: map[string]int{}}
	path, served := remotepb.NewWorkersHandler(s, connect.WithReadMaxBytes(o.MaxBytes), connect.WithCodec(binary{}),
		connect.WithCodec(text{"json"}), connect.WithCodec(text{"json; charset=utf-8"}))
	return path, s.guard(served)
}

type callerKey struct{}

// admitted is who sent a request, and what asks again whether he may.
type admitted struct {
	Caller
	again func() (Caller, error)
	until func(time.Time) // bounds what is sent to him; zero: it may take as long as it likes
}

// guard lets a request through of somebody who may run jobs, and gives its stream the time that it needs.
func (s *server) guard(next http.Handler) http.Handler {
	errs := connect.NewErrorWriter()
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		caller, err := s.who(r)
		if err == nil && !s.limit(s.calls, caller.Name, s.opts.CallsPerSecond, s.opts.CallsBurst).Allow() {
			err = connect.NewError(connect.CodeUnavailable, fmt.Errorf("too_often: more than %v calls a second: try again later", s.opts.CallsPerSecond))
		}
		if err != nil {
			_ = errs.Write(w, r, err)
			return
		}
		by := admitted{Caller: caller, again: func() (Caller, error) { return s.who(r) }}
		if r.URL.Path == remotepb.WorkersStreamJobsProcedure {
			control := http.NewResponseController(w)
			_ = control.SetReadDeadline(time.Time{})
			by.until = func(at time.Time) { _ = control.SetWriteDeadline(at) }
			by.until(time.Time{})
		}
		next.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), callerKey{}, by)))
	})
}

// who finds out who sends a request.
func (s *server) who(r *http.Request) (Caller, error) {
	caller, err := s.opts.Authenticate(r)
	if err != nil && connect.CodeOf(err) == connect.CodeUnknown {
		err = connect.NewError(connect.CodeUnauthenticated, errors.New("authentication required: send Authorization: Bearer with a valid token"))
	}
	return caller, err
}

// maxPrincipals bounds whose calls are counted: when there are more, all are counted anew.
const maxPrincipals = 10_000

func (s *server) limit(all map[string]*rate.Limiter, name string, each float64, burst int) *rate.Limiter {
	s.mu.Lock()
	defer s.mu.Unlock()
	if all[name] == nil {
		if len(all) >= maxPrincipals {
			clear(all)
		}
		all[name] = rate.NewLimiter(rate.Limit(each), burst)
	}
	return all[name]
}

// enter counts a stream of a principal, or says that he has as many as he may.
func (s *server) enter(name string) (leave func(), err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.streams[name] >= s.opts.MostStreams {
		return nil, connect.NewError(connect.CodeResourceExhausted, errors.New("you have reached your limit of workers on this pod: connect to another pod"))
	}
	s.streams[name]++
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.streams[name]--; s.streams[name] == 0 {
			delete(s.streams, name)
		}
	}, nil
}

func callerOf(ctx context.Context) admitted {
	c, _ := ctx.Value(callerKey{}).(admitted)
	return c
}
