package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/trapeze-run/trapeze/internal/store"
	"github.com/trapeze-run/trapeze/job"
	"github.com/trapeze-run/trapeze/remote/server"
	"github.com/trapeze-run/trapeze/remote/worker"
	"github.com/trapeze-run/trapeze/runner"
)

type remoteNoop struct{}

func (remoteNoop) Kind() string { return "bench.remote" }

// remote measures how fast remote workers run 2,000 no-op jobs through one pod.
func (b *lab) remote(ctx context.Context) (l line, err error) {
	n, rounds := b.size(2000), 9
	l = line{What: fmt.Sprintf("%d waiting no-op jobs, run by streaming workers with 10 slots each in the same process as the pod; medians of %d alternating rounds, and the maximum for rollbacks, from opening the first stream to finishing the last job", n, rounds),
		Goal: "≥ 1,223 jobs/s with 8 workers, no rollbacks, ≤ 1.6 transactions per job; 20 workers are not slower than 8"}
	sizes := []int{8, 20}
	rates, commits, rollbacks := map[int][]float64{}, map[int][]float64{}, map[int][]float64{}
	for range rounds { // alternate between the sizes, because the machine's speed varies over time
		for _, workers := range sizes {
			rate, committed, rolledBack, err := b.remoteRound(ctx, n, workers)
			if err != nil {
				return l, err
			}
			rates[workers], commits[workers], rollbacks[workers] = append(rates[workers], rate), append(commits[workers], committed), append(rollbacks[workers], rolledBack)
			b.printf("remote: %d workers: %.0f jobs/s", workers, rate)
		}
	}
	for _, workers := range sizes {
		l.set(fmt.Sprintf("jobs/s over %d workers", workers), median(rates[workers]))
		l.set(fmt.Sprintf("transactions a job over %d", workers), median(commits[workers]))
		l.set(fmt.Sprintf("rollbacks over %d", workers), slices.Max(rollbacks[workers]))
	}
	pairs := make([]float64, rounds)
	for i := range pairs {
		pairs[i] = rates[20][i] / rates[8][i]
	}
	l.set("jobs/s, 20 ÷ 8 workers", median(pairs))
	return l, nil
}

func (b *lab) remoteRound(ctx context.Context, n, workers int) (rate, commits, rollbacks float64, err error) {
	g, err := b.rig(ctx, runner.Options{})
	if err != nil {
		return 0, 0, 0, err
	}
	defer g.close()
	runner.Handle(g.r, func(context.Context, *runner.Job[fanChild]) (*runner.Outcome, error) { return nil, nil })
	g.start(ctx)
	list := make([]job.Args, n)
	for i := range list {
		list[i] = runner.Step(remoteNoop{}, runner.Foreign())
	}
	if _, err := g.r.EnqueueMany(ctx, list); err != nil {
		return 0, 0, 0, err
	}
	mux := http.NewServeMux()
	mux.Handle(server.Handler(g.r, server.Options{Authenticate: func(*http.Request) (server.Caller, error) { return server.Caller{Name: "bench"}, nil }}))
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return 0, 0, 0, err
	}
	web := &http.Server{Handler: mux, Protocols: new(http.Protocols), ReadHeaderTimeout: 5 * time.Second}
	web.Protocols.SetUnencryptedHTTP2(true)
	go func() { _ = web.Serve(listener) }()
	defer web.Close()

	done, last := atomic.Int64{}, make(chan time.Time, 1)
	before, err := transactions(ctx, g.url)
	if err != nil {
		return 0, 0, 0, err
	}
	working, stop := context.WithCancel(ctx)
	var ended sync.WaitGroup
	defer ended.Wait()
	defer stop()
	var all []*worker.Worker
	for range workers {
		r, err := runner.NewRemote(runner.RemoteOptions{})
		if err != nil {
			return 0, 0, 0, err
		}
		defer r.Close()
		runner.Handle(r, func(context.Context, *runner.Job[remoteNoop]) (*runner.Outcome, error) {
			if done.Add(1) == int64(n) {
				last <- time.Now()
			}
			return nil, nil
		})
		w, err := worker.New(r, worker.Options{Server: "http://" + listener.Addr().String(), Slots: 10})
		if err != nil {
			return 0, 0, 0, err
		}
		all = append(all, w)
	}
	began := time.Now()
	for _, w := range all {
		ended.Go(func() { _ = w.Run(working) })
	}
	if _, err := arrived(ctx, last); err != nil {
		return 0, 0, 0, fmt.Errorf("%d jobs over %d workers: %w", n, workers, err)
	}
	if err := g.drained(ctx); err != nil {
		return 0, 0, 0, err
	}
	rate = float64(n) / time.Since(began).Seconds()
	stop()
	ended.Wait()
	// Sessions report their statistics with a delay of up to a second, or when they end.
	time.Sleep(1500 * time.Millisecond)
	after, err := transactions(ctx, g.url)
	return rate, (after.commits - before.commits) / float64(n), after.rollbacks - before.rollbacks, err
}

// moved counts the committed and rolled-back transactions in a database.
type moved struct{ commits, rollbacks float64 }

// transactions reads a database's statistics. Idle sessions report their statistics with a delay of at most a second.
func transactions(ctx context.Context, url string) (m moved, err error) {
	conn, err := pgx.Connect(ctx, url)
	if err != nil {
		return m, err
	}
	defer conn.Close(ctx)
	err = conn.QueryRow(ctx, `select xact_commit, xact_rollback from pg_stat_database where datname = current_database()`).Scan(&m.commits, &m.rollbacks)
	return m, err
}

// remoteBacklog measures how the cost of claiming jobs for a remote worker depends on the size of the backlog. It dispatches jobs for ten
// free slots, alternating between databases with small and large backlogs.
func (b *lab) remoteBacklog(ctx context.Context) (l line, err error) {
	little, much, others, rounds, few := 100, b.size(1_000_000), b.size(200_000), b.size(300), b.size(20)
	l = line{What: fmt.Sprintf("a dispatch for 10 free slots with a backlog of %d, of %d, and of %d behind %d jobs of kinds that the worker does not run; alternating, %d times each, the last one %d times; claimed jobs are returned; without autovacuum", little, much, little, others, rounds, few),
		Goal: "the same with a million as with a hundred"}
	var all []*backlog
	for _, one := range []*backlog{
		{name: fmt.Sprint(little), own: little}, {name: fmt.Sprint(much), own: much}, {name: fmt.Sprintf("%d behind %d", little, others), own: little, others: others},
	} {
		if err := one.fill(ctx, b); err != nil {
			return l, err
		}
		defer one.close()
		all = append(all, one)
		b.printf("remote-backlog: %s", one.name)
	}
	for round := range rounds {
		for i := range all {
			one := all[(round+i)%len(all)]
			if one.others > 0 && round >= few {
				continue
			}
			if err := one.dispatch(ctx); err != nil {
				return l, err
			}
		}
	}
	for _, one := range all {
		buffers, err := one.touched(ctx)
		if err != nil {
			return l, err
		}
		l.set(one.name+": buffers of claim and giving back", (buffers-one.before)/float64(len(one.took)))
		report(&l, one.name+": claim ms", one.took)
	}
	return l, all[2].fromTheMark(ctx, &l, rounds)
}

// backlog is a database with waiting jobs.
type backlog struct {
	*rig
	name        string
	own, others int // jobs of the worker's kinds, and jobs of other kinds that come before them
	st          *store.Store
	boot        string
	before      float64
	since       time.Time // the low-water mark
	took        []float64
}

func (g *backlog) fill(ctx context.Context, b *lab) (err error) {
	if g.rig, err = b.rig(ctx, runner.Options{}); err != nil {
		return err
	}
	for kind, n := range map[string]int{"bench.other": g.others, remoteNoop{}.Kind(): g.own} {
		// The jobs are submitted in several calls, because the arguments of a million jobs would take a gigabyte of memory.
		priority := runner.Priority(0)
		if kind == "bench.other" {
			priority = runner.Priority(1)
		}
		for part := 0; part < n; part += 50_000 {
			list := make([]job.Args, min(50_000, n-part))
			for i := range list {
				list[i] = runner.Step(runner.Raw{Name: kind, JSON: json.RawMessage(`{}`)}, runner.Foreign(), priority)
			}
			if _, err := g.r.EnqueueMany(ctx, list); err != nil {
				return err
			}
		}
	}
	if g.st, err = store.New(ctx, g.pool, store.Options{Connections: 1}); err != nil {
		return err
	}
	g.end = append(g.end, g.st.Close)
	g.boot = uuid.NewString()
	if err := g.st.Register(ctx, store.PodInfo{Boot: g.boot, Name: "bench", Kinds: []string{remoteNoop{}.Kind()}, Slots: 10}, 24*time.Hour); err != nil {
		return err
	}
	if err := g.tidy(ctx); err != nil {
		return err
	}
	// Autovacuum is disabled, because its page reads would be added to those of the claims.
	if _, err := g.pool.Exec(ctx, `alter table trapeze.live set (autovacuum_enabled = off); alter table trapeze.jobs set (autovacuum_enabled = off)`); err != nil {
		return err
	}
	for range 10 { // warm up plans and caches
		if err := g.dispatch(ctx); err != nil {
			return err
		}
	}
	g.took = nil
	g.before, err = g.touched(ctx)
	return err
}

// dispatch claims jobs for ten slots, using as many claim statements as a pod would use for a worker. It then returns the jobs to the
// queue.
func (g *backlog) dispatch(ctx context.Context) error {
	sent := time.Now()
	want := store.Want{Lane: job.DefaultLane, N: 10, Since: g.since}
	var claims store.Claims
	for {
		var err error
		if claims, err = g.st.Claim(ctx, g.boot, []store.Want{want}, []string{remoteNoop{}.Kind()}, false); err != nil {
			return err
		}
		reached := claims.Reached[job.DefaultLane]
		if len(claims.Jobs) > 0 || reached.Last == nil {
			break
		}
		want.After = reached.Last
	}
	g.took = append(g.took, ms(time.Since(sent)))
	if len(claims.Jobs) == 0 {
		return fmt.Errorf("claimed nothing of a backlog of %s", g.name)
	}
	leases := make([]job.Lease, len(claims.Jobs))
	for i, c := range claims.Jobs {
		leases[i] = job.Lease{JobID: c.ID, Fence: c.Fence, Pod: g.boot}
	}
	_, err := g.st.HandBack(ctx, g.boot, leases, "")
	return err
}

// fromTheMark measures dispatches that start at the low-water mark of a previous sweep.
func (g *backlog) fromTheMark(ctx context.Context, l *line, rounds int) (err error) {
	var mark time.Time
	if err := g.pool.QueryRow(ctx, `select min(ready_at) from trapeze.live where kind = $1`, remoteNoop{}.Kind()).Scan(&mark); err != nil {
		return err
	}
	if g.before, err = g.touched(ctx); err != nil {
		return err
	}
	g.took, g.since = nil, mark
	for range rounds {
		if err := g.dispatch(ctx); err != nil {
			return err
		}
	}
	buffers, err := g.touched(ctx)
	if err != nil {
		return err
	}
	l.set(g.name+", from the mark: buffers of claim and giving back", (buffers-g.before)/float64(len(g.took)))
	report(l, g.name+", from the mark: claim ms", g.took)
	return nil
}

// touched returns the number of pages read from Trapeze's tables and indexes, whether cached or not.
func (g *backlog) touched(ctx context.Context) (n float64, err error) {
	time.Sleep(1500 * time.Millisecond) // sessions report their statistics up to a second later
	if err := g.st.Pool().Ping(ctx); err != nil {
		return 0, err
	}
	time.Sleep(200 * time.Millisecond)
	err = g.pool.QueryRow(ctx, `select sum(heap_blks_hit + heap_blks_read + idx_blks_hit + idx_blks_read)::float8 from pg_statio_user_tables`).Scan(&n)
	return n, err
}
