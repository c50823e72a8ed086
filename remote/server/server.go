// Package server serves remote workers: programs without a database connection that run jobs. It serves standard gRPC on net/http, so it
// can share the pod's port with the HTTP API.
//
//	worker ──StreamJobs──▶ pod   a session claims jobs for the worker's free slots and sends them down the stream
//	       ──Heartbeat───▶       renews the lease, acknowledges jobs, sends progress and receives cancellations
//	       ──ReportResult▶       ends a claim; the response is sent after the commit
//
// The package makes no decisions about jobs. That is up to the session's engine (remote/internal/host), which uses the same statements and
// fences as for the pod's local jobs.
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
	"github.com/trapeze-run/trapeze/remote/internal/host"
	"github.com/trapeze-run/trapeze/remote/remotepb"
	"github.com/trapeze-run/trapeze/runner"
)

// Options configure [Handler].
type Options struct {
	// Authenticate returns the sender of a request and the kinds and lanes that the sender may use. If it returns an error that is not a
	// connect error, the response is UNAUTHENTICATED without the error's text.
	Authenticate func(*http.Request) (Caller, error)
	// CallsPerSecond and CallsBurst limit each principal's calls on this pod. The defaults are 5,000 and 10,000.
	CallsPerSecond float64
	CallsBurst     int
	// MaxBytes is the maximum size of a message. The default is 16 MiB, enough for a result of 1 MiB and the children of a fan-out.
	MaxBytes int
	// MostStreams is the maximum number of workers per principal on this pod. The limit exists because each worker has a row and polls for
	// jobs. The default is 1,000.
	MostStreams int
	// OpensPerSecond limits how often each principal can open a stream on this pod, because opening a stream costs more than other calls. A
	// burst of twice MostStreams is allowed, because when a pod goes away, all its workers reconnect to other pods at once. The default is
	// 100.
	OpensPerSecond float64
	// NudgeInterval is the interval at which workers that understand nudges are nudged, because proxies close idle streams. The default is
	// 15 s. An open stream's credentials are rechecked every 3 s, or at this interval if it is shorter.
	NudgeInterval time.Duration
	// SendWithin is the timeout for sending a job. If a worker has not read the job by then, its stream is closed. The default is 10 s.
	SendWithin time.Duration
}

// Caller is the principal on whose behalf a worker runs.
type Caller struct {
	Name string                 // the principal; no other principal can act for its workers
	Kind func(name string) bool // reports whether the principal may run a kind; nil allows all
	Lane func(name string) bool // reports whether the principal may claim from a lane; nil allows all

	// Refused is called when the caller requests a kind that it may not run. It can be nil.
	Refused func(why string)
}

type server struct {
	host *host.Host
	opts Options

	mu      sync.Mutex
	calls   map[string]*rate.Limiter // by principal
	opens   map[string]*rate.Limiter // stream openings, by principal
	streams map[string]int           // number of open streams, by principal
}

// Handler returns the path of the service and the handler to mount there. The handler requires HTTP/2, either over TLS or, on loopback,
// unencrypted.
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
	if o.NudgeInterval <= 0 {
		o.NudgeInterval = 15 * time.Second
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

// sender holds a request's caller and a function that reauthenticates it.
type sender struct {
	Caller
	again func() (Caller, error)
	until func(time.Time) // sets the write deadline; the zero time removes it
}

// guard authenticates requests, limits their rate, and removes deadlines from streams.
func (s *server) guard(next http.Handler) http.Handler {
	errs := connect.NewErrorWriter()
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		caller, err := s.authenticate(r)
		if err == nil && !s.limit(s.calls, caller.Name, s.opts.CallsPerSecond, s.opts.CallsBurst).Allow() {
			err = connect.NewError(connect.CodeUnavailable, fmt.Errorf("too_often: more than %v calls a second: try again later", s.opts.CallsPerSecond))
		}
		if err != nil {
			_ = errs.Write(w, r, err)
			return
		}
		by := sender{Caller: caller, again: func() (Caller, error) { return s.authenticate(r) }}
		if r.URL.Path == remotepb.WorkersStreamJobsProcedure {
			control := http.NewResponseController(w)
			_ = control.SetReadDeadline(time.Time{})
			by.until = func(at time.Time) { _ = control.SetWriteDeadline(at) }
			by.until(time.Time{})
		}
		next.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), callerKey{}, by)))
	})
}

// authenticate returns the sender of a request.
func (s *server) authenticate(r *http.Request) (Caller, error) {
	caller, err := s.opts.Authenticate(r)
	if err != nil && connect.CodeOf(err) == connect.CodeUnknown {
		err = connect.NewError(connect.CodeUnauthenticated, errors.New("authentication required: send Authorization: Bearer with a valid token"))
	}
	return caller, err
}

// maxPrincipals is the maximum number of principals whose calls are counted. When it is exceeded, all counters are reset.
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

// enter counts a principal's new stream. It returns an error if the principal has reached its limit.
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

func senderOf(ctx context.Context) sender {
	c, _ := ctx.Value(callerKey{}).(sender)
	return c
}
