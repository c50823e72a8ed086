//go:build long

package runner_test

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/internal/feed"
	"github.com/trapeze-run/trapeze/internal/inside"
	"github.com/trapeze-run/trapeze/internal/pgtest"
	"github.com/trapeze-run/trapeze/runner"
)

func TestTwentyPodsOnDefaultServer(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	server := pgtest.Server(t, "max_connections", "100")
	pgtest.Migrate(t, server.URL())
	admin := pgtest.Connect(t, server.URL())
	is.Equal(queryOne[string](t, admin, `show max_connections`), "100")
	var pods []*runner.Runner
	for n := range 20 { // each pod has a separate host pool
		o := runner.Options{PodName: fmt.Sprint("pod-", n), HeartbeatInterval: 2 * time.Second}
		pods = append(pods, start(t, pgtest.Connect(t, server.URL()), o, map[string]handler{"k": succeed}))
	}
	errs := make(chan error, 20*10)
	var busy sync.WaitGroup
	for _, r := range pods {
		for range 10 { // together, the goroutines need more connections than the server allows
			busy.Go(func() {
				for range 5 {
					if _, err := r.Enqueue(t.Context(), rawArgs("k")); err != nil {
						errs <- err
						return
					}
				}
			})
		}
	}
	busy.Wait()
	close(errs)
	for err := range errs {
		t.Error(err)
	}
	pgtest.WaitFor(t, time.Minute, "all jobs have run", func() bool {
		return queryOne[int](t, admin, `select count(*) from trapeze.done where state = 'succeeded'`) == 20*10*5
	})
	is.Equal(queryOne[int](t, admin, `select count(*) from trapeze.job_event where event = 'pod.lapsed'`), 0)
}

// takeAll takes all of a server's free connections, including any that are released later, until the test ends.
func takeAll(t *testing.T, url string) {
	ctx, cancel := context.WithCancel(context.Background())
	full, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		var taken []*pgx.Conn
		for first := true; ctx.Err() == nil; {
			conn, err := pgx.Connect(ctx, url)
			switch {
			case err == nil:
				taken = append(taken, conn)
			case first && ctx.Err() == nil:
				close(full)
				first = false
			}
		}
		for _, conn := range taken {
			_ = conn.Close(context.WithoutCancel(ctx))
		}
	}()
	t.Cleanup(func() { cancel(); <-done })
	select {
	case <-full:
	case <-time.After(20 * time.Second):
		t.Fatal("the server never runs out of connections")
	}
}

// A late heartbeat keeps its connection because the server would not accept a new one.
func TestLeasesWithoutFreeConnections(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	server := pgtest.Server(t, "max_connections", "25")
	pgtest.Migrate(t, server.URL())
	admin, err := pgx.Connect(t.Context(), server.URL())
	is.NoErr(err)
	defer func() { _ = admin.Close(context.Background()) }()
	config, err := pgxpool.ParseConfig(server.URL())
	is.NoErr(err)
	config.MaxConns, config.MinConns = 1, 1
	watch, err := pgxpool.NewWithConfig(t.Context(), config)
	is.NoErr(err)
	defer watch.Close()
	late := make(chan struct{}, 100)
	log := slog.New(listens{slog.DiscardHandler, "heartbeat failed", late})
	o := runner.Options{LeaseDuration: 8 * time.Second, HeartbeatInterval: time.Second, Logger: log}
	r := start(t, pgtest.Connect(t, server.URL()), o, map[string]handler{"k": succeed})
	podID := r.PodID()
	waitEnded(t, r, enqueue(t, r, rawArgs("k")))
	is.NoErr(watch.Ping(t.Context()))
	takeAll(t, server.URL())

	tx, err := admin.Begin(t.Context())
	is.NoErr(err)
	_, err = tx.Exec(t.Context(), `select from trapeze.pods for update`)
	is.NoErr(err)
	select {
	case <-late:
	case <-time.After(20 * time.Second):
		t.Fatal("no heartbeat was late")
	}
	const waiting = `select pid from pg_stat_activity where wait_event_type = 'Lock' and application_name = 'trapeze'`
	beats := queryOne[int](t, watch, waiting)
	is.NoErr(tx.Rollback(t.Context()))
	until := queryOne[time.Time](t, watch, `select lease_until from trapeze.pods`)
	pgtest.Wait(t, "it sends heartbeats for longer than its lease lasts", func() bool {
		renewed := queryOne[time.Time](t, watch, `select lease_until from trapeze.pods`)
		return queryOne[bool](t, watch, `select $1 > $2::timestamptz + interval '9 seconds'`, renewed, until)
	})
	is.True(queryOne[bool](t, watch, `select exists (select from pg_stat_activity where pid = $1)`, beats)) // the heartbeat uses the same connection
	is.Equal(r.PodID(), podID)
	waitEnded(t, r, enqueue(t, r, rawArgs("k"))) // the pod's existing connections are sufficient
	is.Equal(queryOne[int](t, watch, `select count(*) from trapeze.job_event where event = 'pod.lapsed'`), 0)
}

// ofPods selects the sessions that pods opened in this database, excluding those of the host pools.
const ofPods = `from pg_stat_activity where datname = current_database() and application_name like 'trapeze%'`

func TestIdlePodConnections(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	url := pgtest.URL(t)
	admin := pgtest.Connect(t, url)
	host := pgtest.Connect(t, pgtest.WithParameter(url, "pool_max_conn_idle_time=100ms"))
	r := start(t, host, runner.Options{PollInterval: 300 * time.Millisecond}, map[string]handler{"k": succeed})
	var busy sync.WaitGroup
	for range 20 {
		busy.Go(func() { _, _ = r.Enqueue(t.Context(), rawArgs("k")) })
	}
	busy.Wait()
	stream, err := inside.Of(r).Feed.All(t.Context(), "", feed.Now)
	is.NoErr(err)
	stream.Close()

	open := func() []int { return column[int](t, admin, `select pid `+ofPods+` order by pid`) }
	var kept []int
	since := time.Now()
	pgtest.Wait(t, "the pod has kept the same three connections for several heartbeats, polls and idle checks", func() bool {
		if now := open(); !slices.Equal(now, kept) || len(now) != 3 {
			kept, since = now, time.Now()
		}
		return time.Since(since) > 3*time.Second
	})
	is.Equal(queryOne[int](t, admin, `select count(*) `+ofPods+` and application_name = 'trapeze-listen'`), 1)
	waitEnded(t, r, enqueue(t, r, rawArgs("k")))
}
