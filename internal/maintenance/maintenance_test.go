package maintenance

import (
	"context"
	"log/slog"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/trapeze-run/trapeze/internal/pgtest"
	"github.com/trapeze-run/trapeze/internal/store"
	"github.com/trapeze-run/trapeze/internal/telemetry"
	"github.com/trapeze-run/trapeze/job"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

// newOne returns a Maintenance with the default limits of package runner.
func newOne(t *testing.T, pool *pgxpool.Pool, pod string) *Maintenance {
	t.Helper()
	s, err := store.New(t.Context(), pool, store.Options{Connections: 3})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	const day = 24 * time.Hour
	return New(Options{
		Store: s, Log: slog.New(slog.DiscardHandler), Metrics: telemetry.New(), Pod: pod, LeadEvery: 10 * time.Second,
		Session: &session{open: func(ctx context.Context) (*pgx.Conn, error) {
			return pgx.ConnectConfig(ctx, pool.Config().ConnConfig)
		}},
		Trusted:         func() bool { return true },
		RetainSucceeded: 2 * day, RetainFailed: 7 * day, RetainCancelled: 2 * day, RetainEvents: 7 * day, ApprovalTTL: day, MaxAge: day,
		Ended: func([]job.End) {}, LinesChanged: func(...store.Line) {}, Overdue: func(job.Lease) {}, FanOutsChanged: func() {},
		Wake: func() {}, WakePeers: func() {}, Count: func(err error) error { return err },
	})
}

// docs/reference.md promises that an idempotency key is kept for a day.
func TestIdempotencyKeyRetention(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t)
	m := newOne(t, pool, "a")
	if _, err := pool.Exec(t.Context(), `insert into trapeze.submissions (key, job_id, fingerprint, created_at)
		values ('kept', 1, '', now() - interval '23 hours 50 minutes'), ('pruned', 2, '', now() - interval '24 hours 10 minutes')`); err != nil {
		t.Fatal(err)
	}
	for _, task := range m.tasks(func(ctx context.Context) error { return ctx.Err() }) {
		if task.name == "submissions" {
			if _, err := task.do(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
	}
	var left string
	if err := pool.QueryRow(t.Context(), `select string_agg(key, ',') from trapeze.submissions`).Scan(&left); err != nil || left != "kept" {
		t.Errorf("left %q, %v; want only the key of the last day", left, err)
	}
}
