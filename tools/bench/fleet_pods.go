package main

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/trapeze-run/trapeze/internal/pgembed"
	"github.com/trapeze-run/trapeze/runner"
)

// fleet measures fleets of different sizes, each pod in a separate process. It starts a separate server, because it needs
// pg_stat_statements.
func (b *lab) fleet(ctx context.Context) (l line, err error) {
	idle, load := b.length(20*time.Second), arrivals{N: b.size(4000), Seed: 7, Mean: 5 * time.Millisecond}
	l = line{What: fmt.Sprintf("fleets of pods with default options and 4 host connections, each pod in a separate process: idle for %s, after 100 s in which it closes the connections of its start; then another process submits no-op jobs to one lane, 200 jobs/s (open loop), for 100 s, in which connections are opened and plans prepared, then %d more that are measured; then each pod runs 50 queries on its host's pool; then kill -9 of a pod. The processor time per job is that of server and pods, less what they use when idle", idle, load.N),
		Goal: "idle cost per pod flat; processor time per job at 50 pods ≤ 1.3 × at 5; p99 at 50 pods ≤ 3 × at 5; ≤ 497 connections busy, ≤ 197 idle"}
	server, err := pgembed.Start(ctx, pgembed.Options{Settings: map[string]string{"max_connections": "500", "shared_preload_libraries": "pg_stat_statements"}})
	if err != nil {
		return l, err
	}
	defer server.Stop()
	alone := &lab{url: server.URL(), scale: b.scale, quiet: b.quiet}
	for _, n := range b.fleets {
		b.printf("fleet: %d pods", n)
		if err := alone.fleetOnce(ctx, &l, n, idle, load); err != nil {
			return l, fmt.Errorf("%d pods: %w", n, err)
		}
	}
	return l, nil
}

// fleetSizes parses a comma-separated list of fleet sizes.
func fleetSizes(list string) (sizes []int, err error) {
	for one := range strings.SplitSeq(list, ",") {
		n, err := strconv.Atoi(one)
		if err != nil || n < 1 {
			return nil, fmt.Errorf("number of pods %q: want at least 1", one)
		}
		sizes = append(sizes, n)
	}
	return sizes, nil
}

// fleetOnce measures a fleet of n pods.
func (b *lab) fleetOnce(ctx context.Context, l *line, n int, idle time.Duration, load arrivals) error {
	url, drop, err := b.fresh(ctx)
	if err != nil {
		return err
	}
	defer drop()
	m := &meters{lab: b, l: l, url: url, name: fmt.Sprintf("%d pods: ", n)}
	stop, err := m.start(ctx, n)
	if err != nil {
		return err
	}
	defer stop()
	quiet, err := m.idle(ctx, idle)
	if err != nil {
		return err
	}
	first := load // this warm-up load opens connections and prepares plans, which happens only once under a constant load
	first.N *= 5  // the same number for all fleets, because vacuuming the rows is part of the measured cost
	if _, err := submitElsewhere(ctx, task{Pool: m.url, Load: first}); err != nil {
		return err
	}
	if err := m.ended(ctx, "bench.arrival", first.N); err != nil {
		return err
	}
	if _, err := m.crew.delays(); err != nil {
		return err
	}
	m.before = first.N
	if err := m.loaded(ctx, load, quiet); err != nil {
		return err
	}
	queries, err := m.during(ctx, func() error { return m.runQueries(ctx, 50*n) })
	if err != nil {
		return err
	}
	m.set("connections with busy host pools", queries.connections)
	if n == 1 {
		return nil
	}
	noticed, err := m.killOne(ctx)
	m.set("s until a dead pod is noticed", noticed.Seconds())
	return err
}

// meters measure the resource usage of a fleet and its server.
type meters struct {
	*lab
	l      *line
	name   string // prefix of the figures
	url    string
	crew   crew
	pool   *pgxpool.Pool
	before int // the number of jobs that ended before the measured load
}

func (m *meters) set(name string, value float64) { m.l.set(m.name+name, value) }

// start starts n pods and waits until they are ready.
func (m *meters) start(ctx context.Context, n int) (stop func(), err error) {
	config, err := pgxpool.ParseConfig(m.url)
	if err != nil {
		return nil, err
	}
	config.ConnConfig.RuntimeParams["application_name"] = "meters"
	if m.pool, err = pgxpool.NewWithConfig(ctx, config); err != nil {
		return nil, err
	}
	if _, err := m.pool.Exec(ctx, `create extension if not exists pg_stat_statements`); err != nil {
		m.pool.Close()
		return nil, err
	}
	if m.crew, err = startCrew(ctx, m.url, n); err != nil {
		m.pool.Close()
		return nil, err
	}
	fail := func(err error) (func(), error) {
		m.crew.kill()
		m.pool.Close()
		return nil, err
	}
	open := m.counts(n, `select count(*) from trapeze.pods where closed_at is null`)
	if err := until(ctx, 2*time.Minute, "all pods have started", func() (bool, error) { return open(ctx) }); err != nil {
		return fail(err)
	}
	return func() { m.crew.kill(); m.pool.Close() }, nil
}

// idle measures the fleet while it has no jobs. First, it waits until idle pods have closed the connections that they do not need.
func (m *meters) idle(ctx context.Context, length time.Duration) (spent, error) {
	pause(ctx, m.length(100*time.Second))
	s, err := m.during(ctx, func() error { pause(ctx, length); return ctx.Err() })
	each := 1 / s.seconds / float64(len(m.crew))
	m.set("idle connections", s.connections)
	m.set("idle statements/s per pod", s.statements*each)
	m.set("idle server ms/s per pod", s.server*each)
	m.set("idle pods ms/s per pod", s.pods*each)
	m.set("heartbeat ms in the server", s.beat)
	return s, err
}

// loaded measures the fleet while another process submits jobs. quiet is the idle fleet's resource usage.
func (m *meters) loaded(ctx context.Context, load arrivals, quiet spent) error {
	var late []float64
	s, err := m.during(ctx, func() (err error) {
		if late, err = submitElsewhere(ctx, task{Pool: m.url, Load: load}); err != nil {
			return err
		}
		return m.ended(ctx, "bench.arrival", m.before+load.N)
	})
	if err != nil {
		return err
	}
	delays, err := m.crew.delays()
	if err != nil {
		return err
	}
	if len(delays) != load.N {
		return fmt.Errorf("%d handlers were called for %d jobs", len(delays), load.N)
	}
	jobs, idle := float64(load.N), s.seconds/quiet.seconds
	m.set("server ms per job", (s.server-quiet.server*idle)/jobs)
	m.set("pods ms per job", (s.pods-quiet.pods*idle)/jobs)
	m.set("processor ms per job", (s.server+s.pods-(quiet.server+quiet.pods)*idle)/jobs)
	m.set("statements per job", (s.statements-quiet.statements*idle)/jobs)
	m.set("claims per job", s.claims/jobs)
	m.set("wake-ups sent per job", s.wakes/jobs)
	m.set("notifications delivered per job", s.notes/jobs)
	m.set("connections under load", s.connections)
	report(m.l, m.name+"due to start ms", delays)
	m.set("submitted late ms p99", quantile(late, 0.99))
	return nil
}

func pause(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}

// spent is the resource usage of a fleet during a phase. CPU times are in milliseconds.
type spent struct {
	seconds, server, pods, statements float64
	connections                       float64 // maximum
	wakes, claims, notes              float64
	beat                              float64 // mean duration of a heartbeat's statement in milliseconds
}

// during measures the fleet's resource usage while do runs.
func (m *meters) during(ctx context.Context, do func() error) (s spent, err error) {
	if _, err := m.pool.Exec(ctx, `select pg_stat_statements_reset()`); err != nil {
		return s, err
	}
	heard, err := m.crew.heard()
	if err != nil {
		return s, err
	}
	watching, stop := context.WithCancel(ctx)
	most := make(chan float64)
	go func() { most <- m.mostConnections(watching) }()
	server, known := m.serverCPU(ctx)
	pods, began := m.crew.cpu(), time.Now()
	err = do()
	s.seconds = time.Since(began).Seconds()
	stop()
	s.connections = <-most
	if err != nil {
		return s, err
	}
	after, _ := m.serverCPU(ctx)
	if !known {
		return s, fmt.Errorf("the processor time of the server is not known on this system")
	}
	s.server, s.pods = ms(after-server), ms(m.crew.cpu()-pods)
	all, err := m.crew.heard()
	if err != nil {
		return s, err
	}
	s.notes = all - heard
	err = m.pool.QueryRow(ctx, `select sum(calls)::float8, coalesce(sum(calls) filter (where query like '%pg_notify%'), 0)::float8,
			coalesce(sum(calls) filter (where query like '%picked as materialized%'), 0)::float8,
			coalesce(sum(total_exec_time + total_plan_time) filter (where query like 'with beat%') / sum(calls) filter (where query like 'with beat%'), 0)::float8
		from pg_stat_statements where dbid = (select oid from pg_database where datname = current_database()) and query not like '%pg_stat_%'`).
		Scan(&s.statements, &s.wakes, &s.claims, &s.beat)
	return s, err
}

// mostConnections returns the highest number of connections until ctx is cancelled, excluding the meters' connections.
func (m *meters) mostConnections(ctx context.Context) (most float64) {
	for ctx.Err() == nil {
		var n float64
		err := m.pool.QueryRow(ctx, `select count(*)::float8 from pg_stat_activity where datname = current_database() and application_name <> 'meters'`).Scan(&n)
		if err == nil {
			most = max(most, n)
		}
		pause(ctx, 250*time.Millisecond)
	}
	return most
}

// counts returns a function that reports whether the query returns the count n.
func (m *meters) counts(n int, sql string, args ...any) func(context.Context) (bool, error) {
	return func(ctx context.Context) (bool, error) {
		var found int
		err := m.pool.QueryRow(ctx, sql, args...).Scan(&found)
		return found == n, err
	}
}

// runQueries runs n jobs whose handlers use the host's pool.
func (m *meters) runQueries(ctx context.Context, n int) error {
	r, err := runner.New(m.pool, runner.Options{})
	if err != nil {
		return err
	}
	defer r.Close()
	if _, err := r.EnqueueMany(ctx, copies(query{}, n), runner.AllowUnregistered()); err != nil {
		return err
	}
	return m.ended(ctx, "bench.query", n)
}

// ended waits until n jobs of a kind have succeeded.
func (m *meters) ended(ctx context.Context, kind string, n int) error {
	all := m.counts(n, `select count(*) from trapeze.done d join trapeze.jobs j using (id) where j.kind = $1 and d.state = 'succeeded'`, kind)
	return until(ctx, 5*time.Minute, "all jobs have ended", func() (bool, error) { return all(ctx) })
}

// killOne kills the last pod and returns how long it took another pod to close its row.
func (m *meters) killOne(ctx context.Context) (noticed time.Duration, err error) {
	killed := time.Now()
	m.crew[len(m.crew)-1:].kill()
	lapsed := m.counts(1, `select count(*) from trapeze.pods where closed = 'lapsed'`)
	err = until(ctx, time.Minute, "a pod has noticed", func() (bool, error) { return lapsed(ctx) })
	return time.Since(killed), err
}
