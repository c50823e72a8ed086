package faults

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/trapeze-run/trapeze/internal/pgtest"
	"github.com/trapeze-run/trapeze/runner"
)

// watcher is the application name of the test's own connections, which faults do not affect.
const watcher = "the test"

// client is the submitter of all jobs that the pods do not submit themselves.
const client = "client"

// world is a database, the pods that use it, and the jobs submitted to them.
type world struct {
	t      *testing.T
	podURL string         // the database URL that the pods and the client use
	pool   *pgxpool.Pool  // the test's own connections
	client *runner.Runner // submits jobs but never runs them
	pods   []*pod

	mu        sync.Mutex
	submitted []int64 // IDs of the jobs that the client submitted
	keys      int
}

// newWorld prepares a migrated database.
func newWorld(t *testing.T, url string) *world { return newWorldBehind(t, url, url) }

// newWorldBehind is like newWorld, but the pods and the client use a different database URL.
func newWorldBehind(t *testing.T, url, podURL string) *world {
	t.Helper()
	w := &world{t: t, podURL: podURL}
	config, err := pgxpool.ParseConfig(url)
	if err != nil {
		t.Fatal(err)
	}
	config.ConnConfig.RuntimeParams["application_name"] = watcher
	if w.pool, err = pgxpool.NewWithConfig(t.Context(), config); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(w.pool.Close)
	if _, err := w.pool.Exec(t.Context(), tablesSQL); err != nil {
		t.Fatal(err)
	}
	host := pgtest.Connect(t, podURL)
	w.client, err = runner.New(host, runner.Options{PodName: client, LeaseDuration: leaseDuration, HeartbeatInterval: heartbeatInterval,
		Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(w.client.Close)
	register(w.client, host)
	registerStress(w.client, host)
	return w
}

// submit submits a job and retries until it succeeds. The idempotency key makes the retries safe.
func (w *world) submit(args runner.Args, options ...runner.EnqueueOption) int64 {
	w.mu.Lock()
	w.keys++
	key := fmt.Sprint("submission ", w.keys)
	w.mu.Unlock()
	options = append(options, runner.IdempotencyKey(key), runner.Submitter(client))
	for {
		made, err := w.client.Enqueue(w.t.Context(), args, options...)
		switch {
		case err == nil:
			w.mu.Lock()
			defer w.mu.Unlock()
			w.submitted = append(w.submitted, made.ID)
			return made.ID
		case w.t.Context().Err() != nil:
			return 0
		case errors.Is(err, runner.ErrInvalid), errors.Is(err, runner.ErrInvalidArgs), errors.Is(err, runner.ErrKeyReused),
			errors.Is(err, runner.ErrUnknownKind), errors.Is(err, runner.ErrUnknownLane):
			w.t.Errorf("submit %s: %v", args.Kind(), err)
			return 0
		}
		_ = pause(w.t.Context(), 20)
	}
}

// round submits jobs of all kinds. The rounds share a few subjects.
func (w *world) round(n int) {
	w.submit(link{Of: chainLength, Millis: 10})
	w.submit(runner.Chain(plain{Millis: 10}, plain{Millis: 10}, plain{}, plain{}, plain{}))
	w.submit(batch{Rows: 5, Millis: 10})
	w.submit(turn{Millis: 10}, runner.Subject(fmt.Sprint("subject ", n%2)))
	w.submit(link{Of: chainLength}, runner.Subject(fmt.Sprint("subject ", n%3)))
	w.submit(flaky{})
	w.submit(split{})
}

// load submits rounds of jobs with a pause after each, in the given number of goroutines until stop is called.
func (w *world) load(goroutines int, rest time.Duration) (stop func()) {
	ctx, cancel := context.WithCancel(w.t.Context())
	var loading sync.WaitGroup
	for first := range goroutines {
		loading.Go(func() {
			for n := first; ctx.Err() == nil; n++ {
				w.round(n)
				_ = pause(ctx, int(rest.Milliseconds()))
			}
		})
	}
	stop = func() { cancel(); loading.Wait() }
	w.t.Cleanup(stop)
	return stop
}

// yes runs a query and returns its boolean result, or false if the database does not respond.
func (w *world) yes(sql string, args ...any) bool {
	w.t.Helper()
	return read[bool](w, sql, args...)
}

// read runs a query and returns the only value in its result, or the zero value if the database does not respond.
func read[T any](w *world, sql string, args ...any) (v T) {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(w.t.Context(), 5*time.Second)
	defer cancel()
	if err := w.pool.QueryRow(ctx, sql, args...).Scan(&v); err != nil {
		w.t.Logf("the test's own query: %v", err)
	}
	return v
}

// now returns the current time on the database's clock.
func (w *world) now() time.Time { return read[time.Time](w, "select clock_timestamp()") }

// settle waits until nothing is left to do.
func (w *world) settle() {
	w.t.Helper()
	for _, p := range w.pods {
		if p.busy {
			pgtest.WaitFor(w.t, time.Minute, p.name+" has submitted all", func() bool { return p.log.says(saysDone) || !p.alive() })
		}
	}
	const quietSQL = `select not exists (select from trapeze.live) and not exists (select from trapeze.parked)`
	for deadline := time.Now().Add(90 * time.Second); !w.yes(quietSQL); {
		if time.Now().After(deadline) {
			w.t.Errorf("not finished:\n%s", w.left())
			for _, p := range w.pods {
				if p.alive() {
					p.signal(syscall.SIGQUIT) // makes the pod log its goroutines
					p.waitExit(w.t, 10*time.Second)
				}
			}
			w.t.FailNow()
		}
		_ = pause(w.t.Context(), 20)
	}
}

// left describes the jobs that have not finished.
func (w *world) left() string {
	rows, _ := w.pool.Query(w.t.Context(), `select format('%s %s %s: %s, pod %s (%s), fence %s, crashes %s, isolated %s', l.id,
			l.kind, l.subject, l.state, l.pod, coalesce(p.name || ' ' || p.closed, p.name), l.fence, l.crashes, l.isolated)
		from trapeze.live l left join trapeze.pods p on p.id = l.pod
		union all select format('%s %s: parked, %s, %s', id, kind, why, run_after) from trapeze.parked
		union all select format('pipelines in the database: %s', count(*)) from trapeze.jobs where step = 0
		union all select format('  %s %s, fence %s, pod %s: %s', e.job, e.at, e.fence, e.pod, e.event)
			from trapeze.job_event e where e.job in (select id from trapeze.live union select id from trapeze.parked)
		union all select format('current run of %s/%s: job %s', kind, subject, job_id) from trapeze.subjects where state = 'held'`)
	lines, err := pgx.CollectRows(rows, pgx.RowTo[string])
	text := fmt.Sprint(err)
	for _, l := range lines {
		text += "\n" + l
	}
	return text
}

// finish waits until all work is done, checks the whole history, and shuts down the remaining pods as an operator would.
func (w *world) finish() history {
	w.t.Helper()
	w.settle()
	h := w.check()
	for _, p := range w.pods {
		if p.alive() {
			p.signal(syscall.SIGTERM)
			p.waitExit(w.t, 10*time.Second)
		}
		if state := p.cmd.ProcessState; state.Exited() && state.ExitCode() != 0 {
			w.t.Errorf("%s ended with %s", p.name, state) // killed processes have no exit code, so this covers only those that exited
		}
	}
	return h
}
