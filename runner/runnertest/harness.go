package runnertest

import (
	"context"
	"crypto/rand"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/trapeze-run/trapeze/job"
	"github.com/trapeze-run/trapeze/runner"
	"github.com/trapeze-run/trapeze/runner/migrate"
)

// Harness runs jobs for one test. Create one with [New]. Only the test's goroutine may call its methods, except for [Harness.Die] and
// [Harness.DieAt], which are safe for concurrent use.
type Harness struct {
	// Patience is the real time that RunUntilIdle waits before it fails the test. Default 30s.
	Patience time.Duration

	t        testing.TB
	host     *pgxpool.Pool
	opts     runner.Options
	register func(*runner.Runner)
	client   *runner.Runner
	pods     []*pod // all pods started so far
	calendar calendar

	mu     sync.Mutex
	deaths []death // pending deaths, next one first
	died   int
	pod    *pod // the running pod, or nil
}

// New returns a harness with its own tables in the pool's database. The pool must reach PostgreSQL without a transaction pooler. New calls
// register once for each pod, to register the handlers. Some options have different defaults: LeaseFor is 30s, HeartbeatEvery 50ms,
// PollEvery 100ms, and nothing is logged. The harness sets Schema, Name, DirectURL, BehindPooler, NoClaimAhead and TraceQueries itself.
// Everything that it creates is removed when the test ends.
func New(t testing.TB, pool *pgxpool.Pool, o runner.Options, register func(*runner.Runner)) *Harness {
	t.Helper()
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.PollEvery == 0 {
		o.PollEvery = 100 * time.Millisecond
	}
	if o.LeaseFor == 0 {
		o.LeaseFor = 30 * time.Second // the test never waits for a lease to expire, and a long lease keeps pods alive on a slow machine
	}
	if o.HeartbeatEvery == 0 {
		o.HeartbeatEvery = min(50*time.Millisecond, o.LeaseFor/3)
	}
	o.Schema = "runnertest_" + strings.ToLower(rand.Text()[:16])
	o.DirectURL, o.BehindPooler, o.NoClaimAhead = "", false, true // claiming ahead would distort crash counts
	h := &Harness{Patience: 30 * time.Second, t: t, host: pool, opts: o, register: register}
	t.Cleanup(h.end)
	if err := migrate.Up(t.Context(), pool, o); err != nil {
		t.Fatalf("runnertest: make the tables: %v", err)
	}
	o.Name = "test"
	client, err := runner.New(pool, o)
	if err != nil {
		t.Fatalf("runnertest: %v", err)
	}
	register(client)
	h.client = client
	h.fatal(h.startCalendar(t.Context()), "declare the schedules")
	return h
}

// end removes everything that the harness created. It does not need the test's pool, which may already be closed.
func (h *Harness) end() {
	h.t.Helper()
	for _, p := range h.pods {
		p.stop()
	}
	for _, p := range h.pods {
		if err := p.close(); err != nil {
			h.t.Errorf("runnertest: %v", err)
		}
	}
	if h.client != nil {
		h.client.Close()
	}
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	if err := h.drop(ctx); err != nil {
		h.t.Errorf("runnertest: drop the tables: %v", err)
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, d := range h.deaths {
		h.t.Errorf("runnertest: no pod died %s: no job reached that point", d)
	}
}

func (h *Harness) drop(ctx context.Context) error {
	conn, err := pgx.ConnectConfig(ctx, h.host.Config().ConnConfig)
	if err != nil {
		return err
	}
	defer conn.Close(ctx)
	_, err = conn.Exec(ctx, "drop schema if exists "+h.opts.Schema+" cascade")
	return err
}

// Runner returns the runner through which the harness submits jobs. Use it for other calls, such as Approve, Cancel, Complete, EnqueueTx or
// RetryPipeline. The runner itself runs no jobs.
func (h *Harness) Runner() *runner.Runner { return h.client }

// Schema returns the schema of the harness's tables.
func (h *Harness) Schema() string { return h.opts.Schema }

// Enqueue submits a job and returns its id. The job starts with the next [Harness.RunUntilIdle].
func (h *Harness) Enqueue(args job.Args, options ...runner.EnqueueOption) int64 {
	h.t.Helper()
	made, err := h.client.Enqueue(h.t.Context(), args, options...)
	if err != nil {
		h.t.Fatalf("runnertest: %v", err)
	}
	return made.ID
}

// in replaces the schema name in a statement with the harness's schema.
func (h *Harness) in(sql string) string {
	return strings.ReplaceAll(sql, "trapeze.", h.opts.Schema+".")
}

// fatal fails the test immediately if err is not nil.
func (h *Harness) fatal(err error, doing string, args ...any) {
	h.t.Helper()
	if err != nil {
		h.t.Fatalf("runnertest: %s: %v", fmt.Sprintf(doing, args...), err)
	}
}
