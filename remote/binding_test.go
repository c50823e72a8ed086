package remote_test

import (
	"errors"
	"net/http"
	"sync"
	"testing"
	"time"

	"connectrpc.com/connect"
	"github.com/google/uuid"
	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/internal/pgtest"
	"github.com/trapeze-run/trapeze/job"
	"github.com/trapeze-run/trapeze/remote/remotepb"
	"github.com/trapeze-run/trapeze/remote/server"
	"github.com/trapeze-run/trapeze/runner"
)

// passport authenticates one principal, whose name and permissions a test can change at any time.
type passport struct {
	mu     sync.Mutex
	caller server.Caller
	err    error
	shown  int // how often it was asked for since the last change
}

func (p *passport) becomes(c server.Caller, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.caller, p.err, p.shown = c, err, 0
}

func (p *passport) show(*http.Request) (server.Caller, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.shown++
	return p.caller, p.err
}

// bare returns a protocol client without a worker, so no heartbeats are sent.
func bare(p pod, options ...connect.ClientOption) remotepb.WorkersClient {
	transport := &http.Transport{Protocols: new(http.Protocols)}
	transport.Protocols.SetUnencryptedHTTP2(true)
	return remotepb.NewWorkersClient(&http.Client{Transport: transport}, p.url, options...)
}

func openStream(t *testing.T, c remotepb.WorkersClient, kinds ...string) *connect.ServerStreamForClient[remotepb.Assignment] {
	t.Helper()
	s, err := c.StreamJobs(t.Context(), connect.NewRequest(&remotepb.StreamJobsRequest{WorkerId: uuid.NewString(), Topics: kinds, Slots: 1}))
	if err != nil {
		t.Fatal(err)
	}
	s.ResponseHeader() // blocks until the stream is open or refused
	return s
}

func TestStreamPrincipalLosesPermission(t *testing.T) {
	for name, c := range map[string]struct {
		now  server.Caller
		err  error
		code connect.Code
	}{
		"the token has expired":                  {err: errors.New("no such token"), code: connect.CodeUnauthenticated},
		"the permission was revoked":             {err: connect.NewError(connect.CodePermissionDenied, errors.New("forbidden")), code: connect.CodePermissionDenied},
		"the token belongs to another principal": {now: server.Caller{Name: "eve"}, code: connect.CodePermissionDenied},
		"other kinds are allowed now":            {now: server.Caller{Name: "gpu", Kind: func(name string) bool { return name == "b" }}, code: connect.CodePermissionDenied},
	} {
		t.Run(name, func(t *testing.T) {
			is := is.New(t)
			who := &passport{caller: server.Caller{Name: "gpu"}}
			p := startPod(t, pgtest.Pool(t), runner.Options{}, server.Options{Authenticate: who.show, NudgeInterval: 20 * time.Millisecond})
			s := openStream(t, bare(p), "a", "b")
			who.becomes(c.now, c.err)
			is.True(!s.Receive()) // the stream has ended
			is.Equal(connect.CodeOf(s.Err()), c.code)
		})
	}
}

func TestIdleStreamBehindProxies(t *testing.T) {
	is := is.New(t)
	p := startPod(t, pgtest.Pool(t), runner.Options{}, server.Options{NudgeInterval: 20 * time.Millisecond})
	call := connect.NewRequest(&remotepb.StreamJobsRequest{WorkerId: uuid.NewString(), Topics: []string{"a"}, Slots: 1, Nudges: true})
	call.Header().Set("Authorization", "Bearer gpu")
	s, err := bare(p).StreamJobs(t.Context(), call)
	is.NoErr(err)
	for range 3 {
		is.True(s.Receive())
		is.Equal(s.Msg().GetJobId(), int64(0)) // a nudge, not a job
	}
}

func TestStreamDuringAuthorizationOutage(t *testing.T) {
	is := is.New(t)
	who := &passport{caller: server.Caller{Name: "gpu", Lane: func(string) bool { return false }}}
	p := startPod(t, pgtest.Pool(t), runner.Options{}, server.Options{Authenticate: who.show, NudgeInterval: 20 * time.Millisecond})
	s := openStream(t, bare(p), "far")
	who.becomes(server.Caller{}, connect.NewError(connect.CodeUnavailable, errors.New("the database does not answer")))
	id := submit(t, p, raw("far", `1`))
	pgtest.Wait(t, "the stream's permissions could not be checked", func() bool {
		who.mu.Lock()
		defer who.mu.Unlock()
		return who.shown > 1
	})
	who.becomes(server.Caller{Name: "gpu", Lane: func(name string) bool { return name == job.DefaultLane }}, nil)
	is.True(s.Receive()) // the worker may now use the lane, on the same stream
	is.Equal(s.Msg().GetJobId(), id)
}

func TestRemoteWorkersPerPrincipal(t *testing.T) {
	is := is.New(t)
	who := &passport{caller: server.Caller{Name: "gpu"}}
	p := startPod(t, pgtest.Pool(t), runner.Options{}, server.Options{Authenticate: who.show, MostStreams: 1, OpensPerSecond: 1000})
	c := bare(p)
	first := openStream(t, c, "a")
	is.NoErr(first.Err())
	second := openStream(t, c, "a")
	is.True(!second.Receive())
	is.Equal(connect.CodeOf(second.Err()), connect.CodeResourceExhausted)
	who.becomes(server.Caller{Name: "another"}, nil)
	third := openStream(t, c, "a")
	is.NoErr(first.Close())
	is.NoErr(third.Close())
	who.becomes(server.Caller{Name: "gpu"}, nil)
	pgtest.Wait(t, "a stream that ends makes room for another", func() bool {
		_, err := c.Heartbeat(t.Context(), connect.NewRequest(&remotepb.HeartbeatRequest{WorkerId: uuid.NewString()}))
		is.Equal(connect.CodeOf(err), connect.CodeAborted) // other calls do not count as streams
		s := openStream(t, c, "a")
		defer s.Close()
		return receive(s) == nil
	})
}

// receive returns the error of a stream that is refused immediately, or nil if the stream stays open.
func receive(s *connect.ServerStreamForClient[remotepb.Assignment]) error {
	refused := make(chan error, 1)
	go func() {
		s.Receive()
		refused <- s.Err()
	}()
	select {
	case err := <-refused:
		return err
	case <-time.After(200 * time.Millisecond):
		return nil
	}
}

func TestRemoteWorkersTokenRemoved(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	who := &passport{caller: server.Caller{Name: "gpu"}}
	p := startPod(t, pgtest.Pool(t), runner.Options{}, server.Options{Authenticate: who.show})
	s := openStream(t, bare(p), "a")
	who.becomes(server.Caller{}, errors.New("no such token"))
	removed := time.Now()
	is.True(!s.Receive())
	is.Equal(connect.CodeOf(s.Err()), connect.CodeUnauthenticated)
	is.True(time.Since(removed) < 10*time.Second)
}
