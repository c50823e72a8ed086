package program

import (
	"context"
	"encoding/json"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/internal/pgtest"
	"github.com/trapeze-run/trapeze/job"
	"github.com/trapeze-run/trapeze/runner"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

// bench is a pod that runs the demo kinds, and the ledger that receives their reports.
type bench struct {
	*runner.Runner
	t    *testing.T
	pool *pgxpool.Pool

	mu     sync.Mutex
	lines  []map[string]any
	refuse bool // whether the ledger rejects effects
}

func newBench(t *testing.T) *bench {
	t.Helper()
	b := &bench{t: t, pool: pgtest.Pool(t)}
	ledger := httptest.NewServer(b)
	t.Cleanup(ledger.Close)
	var err error
	b.Runner, err = runner.New(b.pool, runner.Options{
		PodName: "web-1", HeartbeatInterval: 100 * time.Millisecond, StuckAfter: 200 * time.Millisecond, MaxAttempts: 1,
		Logger: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := registerKinds(t.Context(), b.Runner, b.pool, kindOptions{LedgerURL: ledger.URL}); err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- b.Run(ctx) }()
	t.Cleanup(func() {
		b.StopNow()
		stop()
		if err := <-ended; err != nil {
			t.Errorf("Run: %v", err)
		}
		b.Close()
	})
	pgtest.Wait(t, "the runner is ready", func() bool { ready, _ := b.Ready(); return ready })
	return b
}

// ServeHTTP implements the ledger.
func (b *bench) ServeHTTP(w http.ResponseWriter, request *http.Request) {
	var line map[string]any
	if err := json.NewDecoder(request.Body).Decode(&line); err != nil {
		w.WriteHeader(http.StatusBadRequest)
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.lines = append(b.lines, line)
	if b.refuse && line["ev"] == "effect" {
		w.WriteHeader(http.StatusConflict)
	}
}

// heard returns the events that the ledger received, in order.
func (b *bench) heard() []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	var events []string
	for _, line := range b.lines {
		events = append(events, line["ev"].(string))
	}
	return events
}

// submit submits a job and returns its ID.
func (b *bench) submit(kind, args string, options ...runner.EnqueueOption) int64 {
	b.t.Helper()
	made, err := b.Enqueue(b.t.Context(), runner.Raw{Name: kind, JSON: json.RawMessage(args)}, options...)
	if err != nil {
		b.t.Fatal(err)
	}
	return made.ID
}

// ended waits until a job has finished and returns it.
func (b *bench) ended(id int64) (j job.JobRow) {
	b.t.Helper()
	pgtest.Wait(b.t, "the job ends", func() bool {
		var err error
		if j, err = b.GetJob(b.t.Context(), id); err != nil {
			b.t.Fatal(err)
		}
		return j.State.Terminal()
	})
	return j
}

func TestDemoKindOutcomes(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	for _, c := range []struct {
		kind, args    string
		state         job.State
		result, error string
	}{
		{"demo.noop", `{}`, job.Succeeded, "", ""},
		{"demo.echo", `{"a":[1,null]}`, job.Succeeded, `{"a":[1,null]}`, ""},
		{"demo.result", `{"bytes":5}`, job.Succeeded, `"xxxxx"`, ""},
		{"demo.result", `{"bytes":2000000}`, job.Failed, "", "too large"},
		{"demo.sleep", `{"ms":20,"ticks":2,"ignore_ctx":true}`, job.Succeeded, "", ""},
		{"demo.progress", `{"steps":2,"ms":5}`, job.Succeeded, `{"steps":2}`, ""},
		{"demo.fail", `{"message":"boo","permanent":true}`, job.Failed, "", "boo"},
		{"demo.fail", `{"message":"a","bytes_b64":"AP8="}`, job.Failed, "", "a"}, // a NUL and an invalid byte
		{"demo.flaky", `{"p":0}`, job.Succeeded, "", ""},
		{"demo.flaky", `{"p":1}`, job.Failed, "", "probability 1"},
		{"demo.panic", `{"where":"handler"}`, job.Failed, "", "panic: panic on request"},
		{"demo.panic", `{"where":"roof"}`, job.Failed, "", "roof"},
		{"demo.goexit", `{}`, job.Failed, "", "Goexit"},
		{"demo.spin", `{"ms":5}`, job.Succeeded, "", ""},
		{"demo.leak", `{"n":3}`, job.Succeeded, "", ""},
		{"demo.hog", `{"mb":2}`, job.Succeeded, `{"mb":2}`, ""},
		{"demo.snooze", `{"times":2,"delay_ms":10}`, job.Succeeded, `{"times":2}`, ""},
		{"demo.effect", `{"n":2}`, job.Succeeded, `{"effects":2}`, ""},
		{"demo.batch", `{"rows":2}`, job.Succeeded, `{"rows":2}`, ""},
		{"demo.batch", `{"panic":true}`, job.Failed, "", "panic: panic on request"},
		{"demo.chain", `{"steps":[]}`, job.Succeeded, "", ""},
		{"demo.fanout", `{"n":3}`, job.Succeeded, `{"n":3}`, ""},
		{"demo.fanout", `{"n":2,"child":{"kind":"demo.fail"}}`, job.Failed, ``, "2 of 2 children failed"},
		{"demo.fanout", `{"n":2,"child":{"kind":"demo.fail"},"policy":"fail_fast"}`, job.Failed, ``, "of 2 children failed"},
		{"demo.fanout", `{"n":20000}`, job.Failed, "", "fan-out of 20000 children, at most 10000"},
		{"demo.fanout", `{"n":2000000000}`, job.Failed, "", "want 0 to 1000000"},
		{"demo.fanout", `{"n":1,"policy":"pray"}`, job.Failed, "", `policy "pray"`},
		{"demo.fanout", `{"n":1,"child":{"kind":"demo.nobody"}}`, job.Failed, "", "unknown kind"},
		{"demo.sleep", `{"ms":"soon"}`, job.Failed, "", "invalid args"},
	} {
		t.Run(c.kind+" "+c.args, func(t *testing.T) {
			is := is.New(t)
			j := b.ended(b.submit(c.kind, c.args))
			is.Equal(j.State, c.state)
			is.Equal(string(j.Result), c.result)
			if c.error == "" {
				is.True(j.Error == nil)
				return
			}
			is.True(j.Error != nil && strings.Contains(*j.Error, c.error)) // the error contains the reason
		})
	}
}

func TestLedgerClaimReports(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	b := newBench(t)
	id := b.submit("demo.effect", `{"n":2}`, runner.Subject("s"))
	b.ended(id)
	is.Equal(b.heard(), []string{"start", "effect", "effect", "end"})
	line := b.lines[0]
	is.Equal(line["pod"], "web-1")
	is.Equal(line["pod_id"], b.PodID())
	is.Equal(line["kind"], "demo.effect")
	is.Equal(line["subject"], "s")
	is.Equal(line["fence"], 1.0)
	is.Equal(line["attempt"], 1.0)
	is.Equal(line["job"], line["pipeline"]) // IDs are strings, and a single job is its own pipeline
}

func TestRejectedLedgerEffect(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	b := newBench(t)
	b.refuse = true
	j := b.ended(b.submit("demo.effect", `{"n":5}`, runner.MaxAttempts(9)))
	is.Equal(j.State, job.Failed)
	is.Equal(j.Attempt, 1)                                  // not retried
	is.Equal(b.heard(), []string{"start", "effect", "end"}) // no effect after the rejection
}

func TestLedgerCancelReport(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	b := newBench(t)
	id := b.submit("demo.sleep", `{"ms":600000}`)
	pgtest.Wait(t, "the handler has started", func() bool { return slices.Contains(b.heard(), "start") })
	_, err := b.Admin("ana").Cancel(t.Context(), id)
	is.NoErr(err)
	is.Equal(b.ended(id).State, job.Cancelled)
	is.Equal(b.heard(), []string{"start", "ctx_done", "end"})
	is.Equal(b.lines[1]["cause"], job.ErrCancelled.Error())
}

func TestUnreachableLedgerAtHandlerStart(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	pool := pgtest.Pool(t)
	r, err := runner.New(pool, runner.Options{MaxAttempts: 1, Logger: slog.New(slog.DiscardHandler)})
	is.NoErr(err)
	defer r.Close()
	is.NoErr(registerKinds(t.Context(), r, pool, kindOptions{LedgerURL: "http://127.0.0.1:1/"}))
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- r.Run(ctx) }()
	made, err := r.Enqueue(t.Context(), runner.Raw{Name: "demo.effect"})
	is.NoErr(err)
	pgtest.Wait(t, "the job fails", func() bool {
		j, err := r.GetJob(t.Context(), made.ID)
		return err == nil && j.State == job.Failed && strings.Contains(*j.Error, "ledger")
	})
	stop()
	is.NoErr(<-ended)
}

func TestDemoRowsAtomicWithFinish(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	b := newBench(t)
	kept := b.submit("demo.tx", `{"rows":3}`)
	undone := b.submit("demo.tx", `{"rows":3,"rollback":true}`)
	is.Equal(b.ended(kept).State, job.Succeeded)
	is.Equal(b.ended(undone).State, job.Failed)
	count := func(id int64) (n int) {
		is.NoErr(b.pool.QueryRow(t.Context(), `select count(*) from trapeze.demo_rows where job_id = $1 and fence = 1`, id).Scan(&n))
		return n
	}
	is.Equal(count(kept), 3)
	is.Equal(count(undone), 0)
}

func TestDemoChainStepOptions(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	b := newBench(t)
	first := b.submit("demo.chain", `{"steps":[{"kind":"demo.noop"},{"kind":"demo.noop","subject":"own","priority":0},{"kind":"demo.echo","args":{"n":3}}]}`,
		runner.Subject("parent"), runner.Priority(7))
	var steps []job.JobRow
	pgtest.Wait(t, "all steps end", func() bool {
		steps = nil
		rows, err := b.pool.Query(t.Context(), `select id from trapeze.jobs where pipeline_id = $1 order by step`, first)
		is.NoErr(err)
		var ids []int64
		for rows.Next() {
			var id int64
			is.NoErr(rows.Scan(&id))
			ids = append(ids, id)
		}
		for _, id := range ids {
			j, err := b.GetJob(t.Context(), id)
			is.NoErr(err)
			steps = append(steps, j)
		}
		return len(steps) == 4 && steps[3].State == job.Succeeded
	})
	is.Equal(steps[1].Subject, "parent")
	is.Equal(steps[1].Priority, 7)
	is.Equal(steps[2].Subject, "own")
	is.Equal(steps[2].Priority, 0)
	is.Equal(steps[3].Subject, "own") // inherited from the parent
	is.Equal(string(steps[3].Result), `{"n":3}`)
}

func TestDemoChildrenSubjectAndJoin(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	b := newBench(t)
	first := b.submit("demo.fanout", `{"n":3,"child":{"kind":"demo.fanout","args":{"n":2,"child":{"kind":"demo.noop","subject":"own"}}},
		"join":{"kind":"demo.echo","args":{"joined":true}}}`, runner.Subject("parent"))
	var status string
	pgtest.Wait(t, "the pipeline ends", func() bool {
		err := b.pool.QueryRow(t.Context(), `select status from trapeze.pipeline where id = $1`, first).Scan(&status)
		return err == nil && status != "running"
	})
	is.Equal(status, "succeeded")
	var told string
	is.NoErr(b.pool.QueryRow(t.Context(), `select string_agg(line, ', ' order by line) from (select concat_ws(' ', count(*), kind, nullif(subject, ''))
		as line from trapeze.jobs group by kind, subject) x`).Scan(&told))
	is.Equal(told, "1 demo.echo parent, 1 demo.fanout parent, 3 demo.fanout, 6 demo.noop own") // the join inherits its parent's subject
}

func TestConcurrentDemoTableCreation(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	pool := pgtest.Pool(t)
	errs := make(chan error, 8)
	for range cap(errs) {
		go func() {
			r, err := runner.New(pool, runner.Options{})
			if err == nil {
				err = registerKinds(context.Background(), r, pool, kindOptions{})
				r.Close()
			}
			errs <- err
		}()
	}
	for range cap(errs) {
		is.NoErr(<-errs)
	}
}
