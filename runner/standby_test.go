package runner_test

import (
	"context"
	"maps"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/internal/faultnet"
	"github.com/trapeze-run/trapeze/internal/pgtest"
	"github.com/trapeze-run/trapeze/runner"
)

// overheard are the statements that all connections of a pool, and of a runner on it, have sent, by their first line.
type overheard struct {
	mu   sync.Mutex
	said map[string]int
}

func (o *overheard) hear(sql string) {
	name, _, _ := strings.Cut(strings.TrimSpace(sql), "\n")
	switch {
	case strings.Contains(sql, "update trapeze.pods set lease_until"):
		name = "heartbeat"
	case strings.Contains(sql, "update trapeze.live l set state = 'running'"):
		name = "poll"
	case strings.HasPrefix(sql, "listen "):
		name = "listen"
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	o.said[name]++
}

func (o *overheard) so() map[string]int {
	o.mu.Lock()
	defer o.mu.Unlock()
	return maps.Clone(o.said)
}

// pool is a pool on a new database that is listened in on, on the wire: a tracer would not hear the pool's own pings.
func (o *overheard) pool(t *testing.T) *pgxpool.Pool {
	t.Helper()
	o.said = map[string]int{}
	config, err := pgxpool.ParseConfig(pgtest.URL(t))
	if err != nil {
		t.Fatal(err)
	}
	dial := config.ConnConfig.DialFunc
	config.ConnConfig.DialFunc = func(ctx context.Context, network, address string) (net.Conn, error) {
		conn, err := dial(ctx, network, address)
		if err != nil {
			return nil, err
		}
		return faultnet.ListenIn(conn, o.hear), nil
	}
	pool, err := pgxpool.NewWithConfig(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	return pool
}

func TestAnIdlePodSendsOneStatementAHeartbeatAndOneAPoll(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name         string
		beat, poll   time.Duration
		beats, polls int // that are waited for
	}{
		{"when both come often", 100 * time.Millisecond, 250 * time.Millisecond, 20, 8},
		{"when a connection rests for seconds between them", 1500 * time.Millisecond, 2 * time.Second, 4, 3},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			is := is.New(t)
			var o overheard
			start(t, o.pool(t), runner.Options{HeartbeatEvery: c.beat, LeaseFor: max(5*c.beat, 2*time.Second), PollEvery: c.poll}, map[string]does{"k": nothing})
			pgtest.WaitFor(t, 20*time.Second, "what is done once is over", func() bool {
				now := o.so()
				maintained := now["with late as materialized ("] >= 1 && now["with old as materialized ("] >= 1 &&
					now["select trapeze.ensure_partitions($1::int)"] >= 2 && now["with old as ("] >= 2 && now["with page as materialized ("] >= 1 &&
					now["select p.id, j.pipeline_id from trapeze.parked p join trapeze.jobs j on j.id = p.id"] >= 1 &&
					now["select to_date(right(c.relname, 8), 'YYYYMMDD')"] >= 4 && now["with recursive names as ("] >= 1
				return now["listen"] == 1 && now["poll"] >= 2+1 && now["heartbeat"] >= 3 && maintained
			})
			began, before := time.Now(), o.so()
			heard := map[string]int{}
			pgtest.Wait(t, "some heartbeats and polls", func() bool {
				heard = o.so()
				for name, n := range before {
					heard[name] -= n
				}
				maps.DeleteFunc(heard, func(_ string, n int) bool { return n == 0 })
				return heard["heartbeat"] >= c.beats && heard["poll"] >= c.polls
			})
			took := time.Since(began)
			t.Logf("in %s: %v", took, heard)
			delete(heard, "discard plans")                                           // not of a pod at rest: the machine is so busy that a statement took long
			is.True(heard["heartbeat"] <= int(took/c.beat)+1)                        // no more heartbeats than were due
			is.True(heard["poll"] <= int(took/(c.poll*9/10))+1)                      // no more looks than were due
			is.Equal(slices.Sorted(maps.Keys(heard)), []string{"heartbeat", "poll"}) // and nothing else
		})
	}
}
