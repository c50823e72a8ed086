package e2e

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	grpc "connectrpc.com/connect"
	"github.com/google/uuid"
	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/internal/cli"
	"github.com/trapeze-run/trapeze/internal/pgtest"
	"github.com/trapeze-run/trapeze/job"
	"github.com/trapeze-run/trapeze/remote/remotepb"
)

// puppet is a remote worker that sends exactly the messages that a test specifies.
type puppet struct {
	t     *testing.T
	id    string
	token string
	sent  chan *remotepb.Assignment // closed when the stream ends

	mu     sync.Mutex
	client remotepb.WorkersClient // the client for the pod in use
	runs   map[int64]*remotepb.Running
}

func newPuppet(t *testing.T, p *pod, token string) *puppet {
	w := &puppet{t: t, id: uuid.NewString(), token: token, runs: map[int64]*remotepb.Running{}}
	w.talkTo(p)
	return w
}

func (w *puppet) talkTo(p *pod) {
	transport := &http.Transport{Protocols: new(http.Protocols)}
	transport.Protocols.SetUnencryptedHTTP2(true)
	w.t.Cleanup(transport.CloseIdleConnections)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.client = remotepb.NewWorkersClient(&http.Client{Transport: transport}, p.HTTP, grpc.WithGRPC())
}

func (w *puppet) pod() remotepb.WorkersClient {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.client
}

// asking returns a request with the worker's token.
func asking[T any](w *puppet, m *T) *grpc.Request[T] {
	r := grpc.NewRequest(m)
	r.Header().Set("Authorization", "Bearer "+w.token)
	return r
}

// opens opens the stream and returns once the pod has accepted or rejected the worker.
func (w *puppet) opens(slots int32, kinds ...string) error {
	ctx, cancel := context.WithCancel(context.Background())
	w.t.Cleanup(cancel)
	in, err := w.pod().StreamJobs(ctx, asking(w, &remotepb.StreamJobsRequest{WorkerId: w.id, Name: "puppet", Slots: slots, Topics: kinds}))
	if err != nil {
		return err
	}
	if code := grpc.CodeOf(w.beat()); code != grpc.CodeUnknown { // the code of a nil error
		in.Receive()
		return in.Err()
	}
	sent := make(chan *remotepb.Assignment, 100)
	w.sent = sent
	// Heartbeats list every job received, even if the test does not read it, because the pod reclaims jobs that are not listed.
	go func() {
		defer close(sent)
		for in.Receive() {
			m := in.Msg()
			w.mu.Lock()
			w.runs[m.GetJobId()] = &remotepb.Running{JobId: m.GetJobId(), Fence: m.GetFence(), Token: m.GetToken()}
			w.mu.Unlock()
			sent <- m
		}
	}()
	return nil
}

// takes waits for a job and acknowledges it.
func (w *puppet) takes() *remotepb.Assignment {
	w.t.Helper()
	m, ok := <-w.sent
	if !ok {
		w.t.Fatal("no job was sent: the stream is over")
	}
	if err := w.beat(); err != nil {
		w.t.Fatal(err)
	}
	return m
}

func (w *puppet) beat() error {
	m := &remotepb.HeartbeatRequest{WorkerId: w.id}
	w.mu.Lock()
	for _, r := range w.runs {
		m.Running = append(m.Running, r)
	}
	w.mu.Unlock()
	_, err := w.pod().Heartbeat(context.Background(), asking(w, m))
	return err
}

// keepsBeating sends heartbeats until the test ends.
func (w *puppet) keepsBeating() {
	ctx, stop := context.WithCancel(context.Background())
	var beating sync.WaitGroup
	beating.Go(func() {
		for tick := time.NewTicker(200 * time.Millisecond); ; {
			select {
			case <-ctx.Done():
				tick.Stop()
				return
			case <-tick.C:
				_ = w.beat()
			}
		}
	})
	w.t.Cleanup(func() { stop(); beating.Wait() })
}

// reports reports that a job has succeeded with the given result.
func (w *puppet) reports(m *remotepb.Assignment, result string) (remotepb.ReportResultResponse_Status, error) {
	out, err := w.pod().ReportResult(context.Background(), asking(w, &remotepb.ReportResultRequest{WorkerId: w.id, JobId: m.GetJobId(), Fence: m.GetFence(), Token: m.GetToken(),
		Outcome: &remotepb.ReportResultRequest_Done{Done: &remotepb.Done{Result: []byte(result)}}}))
	if err != nil {
		return 0, err
	}
	w.mu.Lock()
	delete(w.runs, m.GetJobId())
	w.mu.Unlock()
	return out.Msg.GetStatus(), nil
}

const puppetsToken, othersToken = "puppet-puppet-puppet-1", "other-other-other-other-1"

// puppetPod starts a pod whose workers are bound to kinds and lanes.
func puppetPod(t *testing.T, db database, env ...string) *pod {
	t.Helper()
	tokens := filepath.Join(t.TempDir(), "tokens.json")
	is.New(t).NoErr(os.WriteFile(tokens, []byte(`{"tokens":[
		{"token":"`+puppetsToken+`","name":"puppet","roles":["worker"],"kinds":["demo.*"],"lanes":["default"]},
		{"token":"`+othersToken+`","name":"other","roles":["worker"]}]}`), 0o600))
	return dispatcher(t, db, append(env, "TRAPEZE_TOKENS_FILE="+tokens, "TRAPEZE_LANES=secret=4")...)
}

func refusedAs(err error, code grpc.Code, word string) bool {
	return grpc.CodeOf(err) == code && strings.Contains(err.Error(), word)
}

// F70: the pod rejects outdated, forged and repeated reports, reports about another worker's job or an unknown job, and reports that arrive
// after a cancellation. Rejected reports have no effect.
func TestForbiddenRemoteWorkerReports(t *testing.T) {
	is := is.New(t)
	db := database{t, pgtest.URL(t)}
	p := puppetPod(t, db)
	w, other := newPuppet(t, p, puppetsToken), newPuppet(t, p, othersToken)
	is.NoErr(w.opens(2, "demo.echo"))
	w.keepsBeating()
	is.NoErr(other.opens(2, "demo.none"))

	id := db.enqueue("demo.echo")
	a := w.takes()
	_, err := other.reports(a, `1`)
	is.True(refusedAs(err, grpc.CodePermissionDenied, "wrong_token")) // the job belongs to another worker
	thief := newPuppet(t, p, othersToken)
	thief.id = w.id
	_, err = thief.reports(a, `1`)
	is.True(refusedAs(err, grpc.CodeAborted, "worker_closed")) // a worker cannot use another worker's ID
	is.True(refusedAs(thief.opens(1, "demo.echo"), grpc.CodeAborted, "worker_closed"))
	for what, change := range map[string]func(*remotepb.Assignment){
		"token": func(m *remotepb.Assignment) { m.Token = make([]byte, 32) }, "fence": func(m *remotepb.Assignment) { m.Fence++ },
		"id": func(m *remotepb.Assignment) { m.JobId++ }, "no token": func(m *remotepb.Assignment) { m.Token = nil },
	} {
		forged := &remotepb.Assignment{JobId: a.GetJobId(), Fence: a.GetFence(), Token: append([]byte{}, a.GetToken()...)}
		change(forged)
		if _, err := w.reports(forged, `1`); !refusedAs(err, grpc.CodePermissionDenied, "wrong_token") {
			t.Errorf("another %s: %v", what, err)
		}
	}
	is.Equal(db.job(id).State, job.Running)
	status, err := w.reports(a, `"mine"`)
	is.NoErr(err)
	is.Equal(status, remotepb.ReportResultResponse_STATUS_ACCEPTED)
	is.Equal(string(db.job(id).Result), `"mine"`) // the result is stored before the response is sent
	status, err = w.reports(a, `"mine"`)
	is.NoErr(err)
	is.Equal(status, remotepb.ReportResultResponse_STATUS_DUPLICATE)
	_, err = w.reports(a, `"yours"`)
	is.True(refusedAs(err, grpc.CodeFailedPrecondition, "stale_fence")) // a different report is not a duplicate
	is.Equal(string(db.job(id).Result), `"mine"`)

	id = db.enqueue("demo.echo")
	a = w.takes()
	db.ok("force-cancel", id)
	_, err = w.reports(a, `"late"`)
	is.True(refusedAs(err, grpc.CodeFailedPrecondition, "stale_fence"))
	is.Equal(db.job(id).State, job.Cancelled)
	id = db.enqueue("demo.echo")
	a = w.takes()
	db.ok("kill", id)
	_, err = w.reports(a, `"done all the same"`)
	is.NoErr(err) // the worker finished before it learned of the cancellation, which takes precedence
	is.Equal(db.job(id).State, job.Cancelled)
}

// F72: a worker may run only jobs to which its token is bound, and cannot slow others down with large or frequent messages.
func TestExcessiveRemoteWorkerMessages(t *testing.T) {
	is := is.New(t)
	db := database{t, pgtest.URL(t)}
	p := puppetPod(t, db, "TRAPEZE_LEASE_DURATION=30s") // a long lease, because the flood keeps a slow machine busy
	w, other := newPuppet(t, p, puppetsToken), newPuppet(t, p, othersToken)
	is.True(refusedAs(w.opens(1, "csv_ingest"), grpc.CodePermissionDenied, "csv_ingest")) // a kind to which its token is not bound
	is.True(refusedAs(w.opens(100_000, "demo.echo"), grpc.CodeInvalidArgument, "slots"))
	is.NoErr(w.opens(2, "demo.echo"))
	w.keepsBeating()
	secret := db.enqueue("demo.echo", "--lane", "secret", "--priority", "100")
	id := db.enqueue("demo.echo")
	a := w.takes()
	is.Equal(fmt.Sprint(a.GetJobId()), id)      // the worker does not receive the more urgent job
	is.Equal(db.job(secret).State, job.Pending) // the more urgent job is in a lane to which the token is not bound
	is.NoErr(other.opens(1, "demo.echo"))       // this token is bound to that lane
	is.Equal(fmt.Sprint(other.takes().GetJobId()), secret)

	_, err := w.reports(a, `"`+strings.Repeat("x", 20<<20)+`"`)
	is.Equal(grpc.CodeOf(err), grpc.CodeResourceExhausted) // a result of 20 MB
	flood := &remotepb.HeartbeatRequest{WorkerId: w.id}
	for i := range int64(100_000) {
		flood.Running = append(flood.Running, &remotepb.Running{JobId: a.GetJobId(), Fence: a.GetFence(), Token: a.GetToken(), Progress: &remotepb.Progress{Done: &i}})
	}
	_, err = w.pod().Heartbeat(t.Context(), asking(w, flood))
	is.True(refusedAs(err, grpc.CodeInvalidArgument, "parts in one message")) // a message with too many parts is rejected without being read
	flood.Running = flood.Running[:2001]
	_, err = w.pod().Heartbeat(t.Context(), asking(w, flood))
	is.True(refusedAs(err, grpc.CodeResourceExhausted, "too_large")) // more progress notes in one message than a worker can have slots

	// The worker sends heartbeats from eight goroutines as fast as it can, while another worker's jobs continue.
	ctx, stop := context.WithCancel(t.Context())
	var flooding sync.WaitGroup
	for range 8 {
		flooding.Go(func() {
			for n := int64(0); ctx.Err() == nil; n++ {
				_, _ = w.pod().Heartbeat(ctx, asking(w, &remotepb.HeartbeatRequest{WorkerId: w.id, Running: []*remotepb.Running{{JobId: a.GetJobId(), Fence: a.GetFence(), Token: a.GetToken(), Progress: &remotepb.Progress{Done: &n}}}}))
			}
		})
	}
	pool := pgtest.Connect(t, db.url)
	writes := func() (n int) {
		is.NoErr(pool.QueryRow(t.Context(), `select event_no from trapeze.live where id = $1`, a.GetJobId()).Scan(&n))
		return n
	}
	before, began := writes(), time.Now()
	startFar(t, p.HTTP, "TRAPEZE_TOKEN="+othersToken, "TRAPEZE_KINDS=demo.sleep")
	db.inState(db.enqueue("demo.sleep", "--args", `{"ms":1}`), job.Succeeded)
	is.True(float64(writes()-before) < 20+20*time.Since(began).Seconds()) // progress is written only a few times a second, regardless of how often it is reported
	stop()
	flooding.Wait()
	_, err = w.reports(a, `1`)
	is.NoErr(err)
	p.signal(syscall.SIGTERM)
	is.Equal(p.end(), cli.CodeOK) // the pod still shuts down cleanly
}
