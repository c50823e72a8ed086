package main

import (
	"io"
	"log/slog"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/internal/inside"
	"github.com/trapeze-run/trapeze/job"
	"github.com/trapeze-run/trapeze/runner"
)

// fleet is a set of processes that share a database, with helpers for tests.
type fleet struct {
	database
	is   *is.I
	pool *pgxpool.Pool
	pods []*pod
}

func (f *fleet) count(sql string, args ...any) (n int) {
	f.t.Helper()
	f.is.NoErr(f.pool.QueryRow(f.t.Context(), sql, args...).Scan(&n))
	return n
}

func (f *fleet) running() int {
	return f.count(`select count(*) from trapeze.live where lane = 'narrow' and state = 'running'`)
}

func (f *fleet) waiting() int {
	return f.count(`select count(*) from trapeze.live where lane = 'narrow' and state = 'pending'`)
}

// submit submits jobs from outside the fleet.
func (f *fleet) submit(n int) {
	f.t.Helper()
	r, err := runner.New(f.pool, runner.Options{Logger: slog.New(slog.NewTextHandler(io.Discard, nil))})
	f.is.NoErr(err)
	defer r.Close()
	list := make([]job.Args, n)
	for i := range list {
		list[i] = runner.Raw{Name: "demo.sleep", JSON: []byte(`{"ms":40}`)}
	}
	_, err = r.EnqueueMany(f.t.Context(), list, runner.Foreign())
	f.is.NoErr(err)
	f.is.NoErr(inside.Of(r).Store.Notify(f.t.Context(), f.pool))
}

// most returns the maximum number of running jobs observed within the given time.
func (f *fleet) most(d time.Duration) (most int) {
	f.t.Helper()
	f.throughout(d, func() { most = max(most, f.running()) })
	return most
}

// throughout calls look repeatedly for the given time.
func (f *fleet) throughout(d time.Duration, look func()) {
	f.t.Helper()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for until := time.Now().Add(d); time.Now().Before(until); <-tick.C {
		look()
	}
}
