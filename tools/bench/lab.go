package main

import (
	"context"
	"errors"
	"fmt"
	neturl "net/url"
	"os"
	"slices"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/trapeze-run/trapeze/internal/migrate"
	"github.com/trapeze-run/trapeze/runner"
)

// lab creates a fresh database for each measurement.
type lab struct {
	url    string
	scale  float64
	quiet  bool  // print only the results
	fleets []int // sizes of the fleets that the workload fleet measures
	n      atomic.Int64
}

// size scales a workload's size by the lab's scale. It returns at least 1 unless n is 0.
func (b *lab) size(n int) int { return max(int(float64(n)*b.scale), min(n, 1)) }

func (b *lab) version(ctx context.Context) (version string, err error) {
	conn, err := pgx.Connect(ctx, b.url)
	if err != nil {
		return "", err
	}
	defer conn.Close(ctx)
	err = conn.QueryRow(ctx, `show server_version`).Scan(&version)
	return version, err
}

// fresh creates a database with the schema, and returns a function that drops it.
func (b *lab) fresh(ctx context.Context) (url string, drop func(), err error) {
	admin, err := pgx.Connect(ctx, b.url)
	if err != nil {
		return "", nil, err
	}
	name := fmt.Sprintf("trapeze_bench_%d_%d", os.Getpid(), b.n.Add(1))
	if _, err := admin.Exec(ctx, "create database "+name); err != nil {
		admin.Close(ctx)
		return "", nil, err
	}
	drop = func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 20*time.Second)
		defer cancel()
		_, _ = admin.Exec(ctx, "drop database "+name+" with (force)")
		admin.Close(ctx)
	}
	parsed, err := neturl.Parse(b.url)
	if err != nil {
		drop()
		return "", nil, err
	}
	parsed.Path = "/" + name
	url = parsed.String()
	if err := migrate.Up(ctx, url, "trapeze"); err != nil {
		drop()
		return "", nil, err
	}
	return url, drop, nil
}

// rig is the setup for one benchmark: a fresh database and a runner with a separate connection pool.
type rig struct {
	pool *pgxpool.Pool
	r    *runner.Runner
	url  string
	end  []func()
}

func (b *lab) rig(ctx context.Context, o runner.Options) (*rig, error) {
	url, drop, err := b.fresh(ctx)
	if err != nil {
		return nil, err
	}
	g := &rig{url: url, end: []func(){drop}}
	if g.pool, err = pgxpool.New(ctx, url); err != nil {
		g.close()
		return nil, err
	}
	g.end = append(g.end, g.pool.Close)
	if g.r, err = runner.New(g.pool, o); err != nil {
		g.close()
		return nil, err
	}
	g.end = append(g.end, g.r.Close)
	return g, nil
}

// start runs the runner until close is called.
func (g *rig) start(ctx context.Context) {
	ctx, cancel := context.WithCancel(ctx)
	ended := make(chan struct{})
	go func() { defer close(ended); _ = g.r.Run(ctx) }()
	g.end = append(g.end, func() { cancel(); <-ended })
	for ready := false; !ready && ctx.Err() == nil; time.Sleep(time.Millisecond) {
		ready, _ = g.r.Ready()
	}
}

func (g *rig) close() {
	for _, end := range slices.Backward(g.end) {
		end()
	}
}

// unfinished returns a positive number if any job is unfinished, and 0 otherwise.
func (g *rig) unfinished(ctx context.Context) (n int, err error) {
	err = g.pool.QueryRow(ctx, `select (select count(*) from (select from trapeze.live limit 1) l) + (select count(*) from (select from trapeze.parked limit 1) p)`).Scan(&n)
	return n, err
}

func (g *rig) drained(ctx context.Context) error {
	for {
		n, err := g.unfinished(ctx)
		if err != nil || n == 0 {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(2 * time.Millisecond):
		}
	}
}

// meter holds the server's counters.
type meter struct {
	wal  float64
	xact float64
}

func (g *rig) meter(ctx context.Context) (m meter, err error) {
	err = g.pool.QueryRow(ctx, `select pg_wal_lsn_diff(pg_current_wal_lsn(), '0/0')::float8, pg_snapshot_xmax(pg_current_snapshot())::text::float8`).Scan(&m.wal, &m.xact)
	return m, err
}

func (g *rig) tidy(ctx context.Context) error {
	if _, err := g.pool.Exec(ctx, "vacuum analyze"); err != nil {
		return err
	}
	_, err := g.pool.Exec(ctx, "checkpoint")
	return err
}

// quantile returns a quantile of sorted values.
func quantile(sorted []float64, q float64) float64 {
	if len(sorted) == 0 {
		return 0
	}
	return sorted[min(int(q*float64(len(sorted))), len(sorted)-1)]
}

func median(values []float64) float64 { return quantile(slices.Sorted(slices.Values(values)), 0.5) }

// until checks a condition every 20 ms until it is true.
func until(ctx context.Context, atMost time.Duration, what string, is func() (bool, error)) error {
	ctx, cancel := context.WithTimeoutCause(ctx, atMost, errors.New("timed out after "+atMost.String()+": "+what))
	defer cancel()
	for {
		if yes, err := is(); yes || err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(20 * time.Millisecond):
		}
	}
}
