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

// overheard counts the statements sent by a pool and its runner, by first line.
type overheard struct {
	mu   sync.Mutex
	said map[string]int
}

func (o *overheard) hear(sql string) {
	name, _, _ := strings.Cut(strings.TrimSpace(sql), "\n")
	switch {
	case strings.Contains(sql, "update trapeze.pods set draining"):
		name = "heartbeat"
	case strings.Contains(sql, "update trapeze.live l set state = 'running'"):
		name = "poll"
	case strings.Contains(sql, "update trapeze.admission "):
		name = "admission"
	case strings.Contains(sql, "update trapeze.maintenance set done_at"):
		name = "task done"
	case strings.Contains(sql, "advisory"):
		name = "lead"
	case strings.HasPrefix(sql, "listen "):
		name = "listen"
	case strings.HasPrefix(name, "select w.lane, r.rank, least("):
		name = "marks"
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

// pool returns a pool for a new database and records its statements at the network level, because a tracer does not see the pool's own
// pings.
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

func TestIdlePodStatements(t *testing.T) {
	t.Parallel()
	type pace struct {
		name         string
		beat, poll   time.Duration
		beats, polls int // minimum numbers to wait for
	}
	for _, c := range firstOf(1,
		pace{"when both come often", 100 * time.Millisecond, 250 * time.Millisecond, 20, 8},
		pace{"when a connection rests for seconds between them", 1500 * time.Millisecond, 2 * time.Second, 4, 3},
	) {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			is := is.New(t)
			var o overheard
			start(t, o.pool(t), runner.Options{HeartbeatInterval: c.beat, LeaseDuration: max(5*c.beat, 2*time.Second), PollInterval: c.poll}, map[string]handler{"k": succeed})
			pgtest.Wait(t, "startup is complete", func() bool {
				now := o.so()
				return now["listen"] == 2 && now["poll"] >= 2+1 && now["heartbeat"] >= 3 && now["task done"] >= 16 && now["lead"] >= 1
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
			delete(heard, "select trapeze.analyze_emptied()")    // sent only after a slow statement
			delete(heard, "discard plans")                       // sent only after a slow statement, when the machine is busy
			delete(heard, "marks")                               // sent only after a slow poll
			is.True(heard["heartbeat"] <= int(took/c.beat)+2)    // no more heartbeats than due
			is.True(heard["poll"] <= int(took/(c.poll*9/10))+1)  // no more polls than due
			is.True(heard["admission"] <= heard["poll"]+1)       // one search for missed admissions per poll
			is.True(heard["lead"] <= int(took/(c.poll*16/10))+1) // the pod checks on every other poll whether it is still the leader
			delete(heard, "lead")
			delete(heard, "admission")
			is.Equal(slices.Sorted(maps.Keys(heard)), []string{"heartbeat", "poll"}) // no other statements were sent
		})
	}
}
