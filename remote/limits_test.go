package remote_test

import (
	"context"
	"net/http"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"
	"github.com/google/uuid"
	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/internal/pgtest"
	"github.com/trapeze-run/trapeze/job"
	"github.com/trapeze-run/trapeze/remote/remotepb"
	"github.com/trapeze-run/trapeze/remote/server"
	"github.com/trapeze-run/trapeze/remote/worker"
	"github.com/trapeze-run/trapeze/runner"
)

func TestRemoteCallRateLimit(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	who := &passport{caller: server.Caller{Name: "gpu"}}
	c := bare(startPod(t, pgtest.Pool(t), runner.Options{}, server.Options{Authenticate: who.show, CallsPerSecond: 1e-9, CallsBurst: 3}))
	beat := func() error {
		_, err := c.Heartbeat(t.Context(), connect.NewRequest(&remotepb.HeartbeatRequest{WorkerId: uuid.NewString()}))
		return err
	}
	for range 3 {
		is.Equal(connect.CodeOf(beat()), connect.CodeAborted) // no such worker exists
	}
	err := beat()
	is.Equal(connect.CodeOf(err), connect.CodeUnavailable)
	is.True(strings.Contains(err.Error(), "too_often"))
	s, err := c.StreamJobs(t.Context(), connect.NewRequest(&remotepb.StreamJobsRequest{WorkerId: uuid.NewString(), Topics: []string{"a"}, Slots: 1}))
	is.NoErr(err)
	is.True(!s.Receive() && strings.Contains(s.Err().Error(), "too_often")) // opening a stream counts as a call
	who.becomes(server.Caller{Name: "another"}, nil)
	is.Equal(connect.CodeOf(beat()), connect.CodeAborted)
}

func TestStreamOpenRateLimit(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	who := &passport{caller: server.Caller{Name: "gpu"}}
	c := bare(startPod(t, pgtest.Pool(t), runner.Options{}, server.Options{Authenticate: who.show, MostStreams: 1, OpensPerSecond: 1e-9}))
	opens := func() error {
		s := openStream(t, c, "a")
		defer s.Close()
		return receive(s)
	}
	is.NoErr(opens())
	_ = opens() // the first stream may still be counted
	err := opens()
	is.Equal(connect.CodeOf(err), connect.CodeUnavailable)
	is.True(strings.Contains(err.Error(), "too_often"))
	_, err = c.Heartbeat(t.Context(), connect.NewRequest(&remotepb.HeartbeatRequest{WorkerId: uuid.NewString()}))
	is.Equal(connect.CodeOf(err), connect.CodeAborted) // other calls are not limited
	who.becomes(server.Caller{Name: "another"}, nil)
	is.True(connect.CodeOf(opens()) != connect.CodeUnavailable) // other principals are not limited either
}

func TestStreamWithoutReader(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	pool := pgtest.Pool(t)
	p := startPod(t, pool, runner.Options{HeartbeatInterval: 2 * time.Second}, server.Options{MostStreams: 1, OpensPerSecond: 1000, SendWithin: 300 * time.Millisecond})
	const slots = 8
	var list []int64
	for range slots { // more data than a client buffers for a stream that nobody reads
		list = append(list, submit(t, p, raw("large", `"`+strings.Repeat("x", 900<<10)+`"`)))
	}
	plain := bare(p, connect.WithAcceptCompression("gzip", nil, nil)) // no compression, which would make the messages too small
	open := func(kind string) *connect.ServerStreamForClient[remotepb.Assignment] {
		m := connect.NewRequest(&remotepb.StreamJobsRequest{WorkerId: uuid.NewString(), Topics: []string{kind}, Slots: slots})
		m.Header().Set("Authorization", "Bearer other")
		s, err := plain.StreamJobs(t.Context(), m)
		is.NoErr(err)
		return s
	}
	lazy := open("large")
	defer lazy.Close()
	lazy.ResponseHeader()
	pgtest.Wait(t, "the first stream no longer counts", func() bool {
		s := open("none")
		defer s.Close()
		return receive(s) == nil
	})
	next := startPod(t, pool, runner.Options{HeartbeatInterval: time.Second}, server.Options{})
	startWorker(t, worker.Options{Server: next.url, Slots: slots}, func(r *runner.Runner) {
		runner.HandleRaw(r, "large", func(context.Context, *runner.Job[runner.Raw]) (*runner.Outcome, error) { return nil, nil })
	})
	for _, id := range list {
		j := ends(t, p, id, job.Succeeded)
		is.Equal(j.Attempt, 1) // unread jobs were handed back without using up an attempt
		is.Equal(j.Crashes, 0)
	}
}

// If two processes share an ID, for example because a machine was cloned, they keep superseding each other's streams. No job runs twice
// with the same fence.
func TestProcessesWithSameWorkerID(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	p := startPod(t, pgtest.Pool(t), runner.Options{}, server.Options{Authenticate: func(*http.Request) (server.Caller, error) { return server.Caller{Name: "gpu"}, nil }})
	type claim struct{ id, fence int64 }
	type process struct {
		remotepb.WorkersClient
		runs map[claim]*remotepb.Running
	}
	id, sent := uuid.NewString(), map[claim]int{}
	twins := [2]process{{bare(p), map[claim]*remotepb.Running{}}, {bare(p), map[claim]*remotepb.Running{}}}
	var list []int64
	for range 4 {
		list = append(list, submit(t, p, raw("far", `{}`)))
	}
	done := 0
	for turn := 0; done < len(list) && turn < 200; turn++ {
		one := twins[turn%2]
		m := &remotepb.StreamJobsRequest{WorkerId: id, Topics: []string{"far"}, Slots: 2}
		for _, r := range one.runs {
			m.Running = append(m.Running, r)
		}
		ctx, cut := context.WithTimeout(t.Context(), 100*time.Millisecond)
		s, err := one.StreamJobs(ctx, connect.NewRequest(m))
		if err != nil { // the open timed out
			cut()
			continue
		}
		for len(one.runs) < 2 && s.Receive() {
			a := s.Msg()
			c := claim{a.GetJobId(), a.GetFence()}
			sent[c]++
			one.runs[c] = &remotepb.Running{JobId: a.GetJobId(), Fence: a.GetFence(), Token: a.GetToken()}
			_, _ = one.Heartbeat(ctx, connect.NewRequest(&remotepb.HeartbeatRequest{WorkerId: id, Running: []*remotepb.Running{one.runs[c]}}))
		}
		if turn%4 >= 2 || turn%8 >= 4 { // report the jobs that were just sent, or those kept while the other process had the stream
			for c, r := range one.runs {
				_, err := one.ReportResult(t.Context(), connect.NewRequest(&remotepb.ReportResultRequest{WorkerId: id, JobId: r.GetJobId(), Fence: r.GetFence(), Token: r.GetToken(),
					Outcome: &remotepb.ReportResultRequest_Done{Done: &remotepb.Done{Result: []byte(`1`)}}}))
				switch {
				case err == nil:
					done++
				case connect.CodeOf(err) == connect.CodeUnavailable:
					continue // report the job later
				case connect.CodeOf(err) != connect.CodeFailedPrecondition:
					t.Fatal(err)
				}
				delete(one.runs, c)
			}
		}
		cut()
		_ = s.Close()
	}
	is.Equal(done, len(list)) // each job has one result
	for c, n := range sent {
		if n != 1 {
			t.Errorf("job %d was sent %d times with fence %d", c.id, n, c.fence)
		}
	}
	for _, id := range list {
		ends(t, p, id, job.Succeeded)
	}
}
