// Package server serves remote workers: programs without a database that run jobs. It serves standard gRPC on net/http, so that it can be
// mounted beside the HTTP API, on the port of the pod.
//
//	worker ──StreamJobs──▶ pod   a session claims for the free slots of the worker, and sends the jobs down the stream
//	       ──Heartbeat───▶       renews the lease, acknowledges jobs, sends progress and receives cancels
//	       ──ReportResult▶       ends a claim; answered when that is committed
//
// It makes no decisions about jobs: the engine of the session does (remote/host), with the same statements and fences as for jobs of the
// pod.
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
	// Authenticate returns the sender of a request and the kinds and lanes that it may run. An error that is not a connect error is
	// answered with UNAUTHENTICATED, without its text.
	Authenticate func(*http.Request) (Caller, error)
	// CallsPerSecond and CallsBurst limit the calls of one principal on this pod. Default 5,000 and 10,000.
	CallsPerSecond float64
	CallsBurst     int
	// MaxBytes limits a message. Default 16 MiB, enough for a result of 1 MiB and the children of a fan-out.
	MaxBytes int
	// MostStreams limits the workers of one principal on this pod. Default 1,000: each has a row, and polls for jobs.
	MostStreams int
	// OpensPerSecond limits how often one principal opens a stream on this pod, which costs more than other calls. After idle time a burst
	// of twice MostStreams is allowed, because all workers reconnect when another pod is gone. Default 100.
	OpensPerSecond float64
	// ReauthInterval is the interval at which the credentials of an open stream are checked again: its token may have expired, or its
	// permissions may have changed. Data is sent at the same interval to workers that understand nudges, because proxies end idle streams.
	// Default 15 s.
	ReauthInterval time.Duration
	// SendWithin is the timeout for sending a job. It ends the stream of a worker that does not read. Default 10 s.
	SendWithin time.Duration
}

// Caller is the principal that acts for a worker.
type Caller struct {
	Name string                 // the principal: only it may act for its workers
	Kind func(name string) bool // reports the kinds that it may run; nil: all
	Lane func(name string) bool // reports the lanes that it may claim from; nil: all

	// Refused is called when it requests a kind that it may not run; nil: no call.
	Refused func(why string)
}

type server struct {
	host *host.Host
	opts Options

	mu      sync.Mutex
	calls   map[string]*rate.Limiter // by principal
	opens   map[string]*rate.Limiter // of streams
	streams map[string]int           // number of open streams, by principal
}

// Handler returns the path of the service and its handler. It requires HTTP/2: over TLS, or in clear text on loopback.
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
	if o.ReauthInterval <= 0 {
		o.ReauthInterval = 15 * time.Second
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

// sender is the sender of a request, with functions to authenticate it again.
type sender struct {
	Caller
	again func() (Caller, error)
	until func(time.Time) // sets the write deadline; zero: none
}

// guard admits requests of principals that may run jobs, and sets the deadlines of their streams.
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

// maxPrincipals limits the principals whose calls are counted. When there are more, all counts start again.
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

// enter counts a stream of a principal, or returns an error if it has reached its limit.
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

func callerOf(ctx context.Context) sender {
	c, _ := ctx.Value(callerKey{}).(sender)
	return c
}
