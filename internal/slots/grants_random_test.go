package slots

import (
	"context"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/internal/pgtest"
	"github.com/trapeze-run/trapeze/internal/store"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

// claimant simulates a pod that does nothing but keep track of its slots in a limited lane.
type claimant struct {
	*Lanes
	podID   string
	running int
	zombies int // jobs from former pod ids, which have lost their lease but still occupy slots here
	knew    int // index of the limit in force when the latest applied heartbeat was answered

	asks    []store.Ask // requests in flight
	asker   string
	answers []store.Slots // replies in flight
	replied bool
	beat    *store.Beat // heartbeat response in flight
	beatAt  int
}

// contest simulates pods that compete for a lane, one random event at a time.
type contest struct {
	*is.I
	ctx    context.Context
	st     *store.Store
	exec   func(sql string, args ...any)
	r      *rand.Rand
	limits []int // all limits so far; the current one is last
	pods   []*claimant
	log    []string
}

func (c *contest) note(format string, args ...any) {
	c.log = append(c.log, fmt.Sprintf(format, args...))
}

func (c *contest) join(p *claimant) {
	p.podID = uuid.NewString()
	c.NoErr(c.st.Register(c.ctx, store.PodInfo{PodID: p.podID, Name: "p", Kinds: []string{"k"}, Slots: 4}, time.Hour))
}

// step applies a random event to a pod. It returns a message if the pod started a job that it must not start.
func (c *contest) step(n int) (wrong string) {
	p := c.pods[n]
	switch c.r.IntN(17) {
	case 0, 1, 2, 3:
		if !p.Reserve("default") {
			break
		}
		p.running++
		c.note("%d starts its job %d", n, p.running)
		all, most := 0, 0
		for _, other := range c.pods {
			all += other.running
		}
		for _, limit := range c.limits[p.knew:] {
			most = max(most, limit)
		}
		if all > most {
			return fmt.Sprintf("pod %d has started job %d of all pods, but knew of at most %d slots", n, all, most)
		}
	case 4, 5:
		if p.running > 0 {
			p.running--
			p.Release("default", 1)
			c.note("%d finishes a job", n)
		}
	case 6:
		if p.zombies > 0 {
			p.zombies--
			p.Release("default", 1)
			c.note("%d finishes a zombie", n)
		}
	case 7, 8, 9:
		if p.asks == nil {
			if c.r.IntN(2) == 0 {
				p.Notified("default")
			}
			if p.asks = ask(p.Lanes, "default", true, time.Now()); len(p.asks) > 0 {
				p.asker, p.replied = p.podID, false
				c.note("%d requests %+v", n, p.asks)
			}
		}
	case 10, 11:
		c.answer(n)
	case 12:
		if p.replied {
			c.settle(n)
		}
	case 13:
		if p.beat == nil {
			b, err := c.st.Heartbeat(c.ctx, p.podID, time.Hour, false)
			c.NoErr(err)
			p.beat, p.beatAt = &b, len(c.limits)-1
			c.note("%d beats: over %v", n, b.Lanes[0].Over)
		}
	case 14:
		if p.beat != nil {
			p.Apply(*p.beat)
			p.knew, p.beat = p.beatAt, nil
			c.note("%d applies its heartbeat", n)
		}
	case 15:
		if c.r.IntN(4) == 0 {
			c.limit(c.r.IntN(6))
		}
	case 16:
		if c.r.IntN(4) == 0 {
			c.lapse(n)
		}
	}
	return ""
}

func (c *contest) limit(n int) {
	c.limits = append(c.limits, n)
	c.exec(`update trapeze.lanes set slots = $1 where name = 'default'`, n)
	c.note("the limit is %d", n)
}

// answer delivers a pod's request to the table, or loses the request or the reply.
func (c *contest) answer(n int) {
	p := c.pods[n]
	if len(p.asks) == 0 || p.replied {
		p.asks = nil
		return
	}
	if c.r.IntN(6) > 0 {
		var err error
		p.answers, err = store.SettleSlots(c.ctx, c.st, p.asker, p.asks, []string{"k"})
		c.NoErr(err)
		p.replied = true
		c.note("%d gets the reply %+v", n, p.answers)
	}
	if c.r.IntN(6) == 0 {
		p.asks, p.replied = nil, false
		c.note("the reply to %d is lost", n)
	}
}

// settle delivers a reply to a pod, and reports whether the pod must send another request.
func (c *contest) settle(n int) (again bool) {
	p := c.pods[n]
	again = p.Lanes.Settle(p.asks, p.answers, time.Now(), func() bool { return p.podID == p.asker })
	p.asks, p.replied = nil, false
	c.note("%d applies the reply", n)
	return again
}

// lapse closes a pod's row. The pod loses its jobs and slots, and rejoins with a new pod id.
func (c *contest) lapse(n int) {
	p := c.pods[n]
	c.NoErr(c.st.Leave(c.ctx, p.podID))
	_, err := store.VoidSlots(c.ctx, c.st, []string{p.podID})
	c.NoErr(err)
	p.zombies, p.running, p.beat = p.zombies+p.running, 0, nil
	c.join(p)
	p.DropGrants()
	c.note("%d lapses and joins again with %d zombies", n, p.zombies)
}

// The lane never runs more jobs than it has slots, even if replies are lost or late, limits are lowered, or pods die. A job may start under
// any limit that its pod may know of. Once no more messages are lost, all of the lane's slots become usable again.
func TestLimitedLaneRandomEvents(t *testing.T) {
	t.Parallel()
	rounds := 12
	if testing.Short() {
		rounds = 3
	}
	for range rounds {
		seed := rand.Uint64()
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel()
			pool := pgtest.Pool(t)
			st, err := store.New(t.Context(), pool, store.Options{Connections: 2})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(st.Close)
			c := &contest{I: is.New(t), ctx: t.Context(), st: st, r: rand.New(rand.NewPCG(seed, 1)), exec: func(sql string, args ...any) { pgtest.Exec(t, pool, sql, args...) }}
			for range 2 + c.r.IntN(3) {
				p := &claimant{Lanes: NewLanes(4, nil)}
				c.join(p)
				c.pods = append(c.pods, p)
			}
			_, err = st.Enqueue(t.Context(), c.pods[0].podID, []store.NewJob{{ID: 1, Kind: "k", Lane: "default", Args: []byte(`{}`)}}) // never claimed, so the lane always has work
			c.NoErr(err)
			c.limit(3)
			for range 1500 {
				if wrong := c.step(c.r.IntN(len(c.pods))); wrong != "" {
					for _, line := range c.log[max(0, len(c.log)-60):] {
						t.Log(line)
					}
					t.Fatalf("seed %d: %s", seed, wrong)
				}
			}
			c.calm(t)
		})
	}
}

// calm delivers all messages and finishes all jobs, and checks that all slots become usable.
func (c *contest) calm(t *testing.T) {
	t.Helper()
	limit := 1 + c.r.IntN(3*len(c.pods))
	c.limit(limit)
	for _, p := range c.pods {
		for range p.running + p.zombies {
			p.Release("default", 1)
		}
		p.running, p.zombies, p.asks, p.replied, p.beat = 0, 0, nil, false, nil
	}
	running := func() (n int) {
		for _, p := range c.pods {
			n += p.running
		}
		return n
	}
	for round := 0; running() < limit; round++ {
		if round > 40 {
			for _, p := range c.pods {
				t.Logf("%+v, %d jobs", p.byName["default"].grant, p.running)
			}
			t.Fatalf("of %d slots, only %d are used", limit, running())
		}
		for n, p := range c.pods {
			b, err := c.st.Heartbeat(c.ctx, p.podID, time.Hour, false)
			c.NoErr(err)
			p.Apply(b)
			p.Release("default", p.running)
			p.running = 0
			for again := true; again; {
				p.asks = ask(p.Lanes, "default", true, time.Now())
				p.asker = p.podID
				p.answers, err = store.SettleSlots(c.ctx, c.st, p.asker, p.asks, []string{"k"})
				c.NoErr(err)
				again = c.settle(n)
				for p.Reserve("default") {
					p.running++
					again = true
				}
			}
		}
		c.True(running() <= limit)
	}
}
