package main

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"

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
		list[i] = runner.With(remoteNoop{}, runner.AllowUnregistered())
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
