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

// claimant is a pod with nothing but its account of a limited lane.
type claimant struct {
	*Lanes
	boot    string
	running int
	zombies int // of former boots: they have no lease, but their slots here
	knew    int // which limit was in force when the latest heartbeat that it heard was answered

	asks    []store.Ask // on their way
	asker   string
	answers []store.Slots // on their way back
	replied bool
	beat    *store.Beat // on its way back
	beatAt  int
}

// contest is some claimants of one lane, and everything that may happen to them one after the other.
type contest struct {
	*is.I
	ctx    context.Context
	st     *store.Store
	exec   func(sql string, args ...any)
	r      *rand.Rand
	limits []int // that were in force, the present one last
	pods   []*claimant
	log    []string
}

func (c *contest) note(format string, args ...any) {
	c.log = append(c.log, fmt.Sprintf(format, args...))
}

func (c *contest) join(p *claimant) {
	p.boot = uuid.NewString()
	c.NoErr(c.st.Register(c.ctx, store.PodInfo{Boot: p.boot, Name: "p", Kinds: []string{"k"}, Slots: 4}, time.Hour))
}

// step lets something happen to a pod, and reports a job that must not have started.
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
			return fmt.Sprintf("pod %d has started a job as the %dth of all, where it knew of no more than %d slots", n, all, most)
		}
	case 4, 5:
		if p.running > 0 {
			p.running--
			p.Release("default", 1)
			c.note("%d ends a job", n)
		}
	case 6:
		if p.zombies > 0 {
			p.zombies--
			p.Release("default", 1)
			c.note("%d ends a zombie", n)
		}
	case 7, 8, 9:
		if p.asks == nil {
			if p.asks, _ = p.Lanes.Asks(c.r.IntN(2) == 0, time.Now()); len(p.asks) > 0 {
				p.asker, p.replied = p.boot, false
				c.note("%d asks %+v", n, p.asks)
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
			b, err := c.st.Heartbeat(c.ctx, p.boot, time.Hour, false)
			c.NoErr(err)
			p.beat, p.beatAt = &b, len(c.limits)-1
			c.note("%d beats: over %v", n, b.Lanes[0].Over)
		}
	case 14:
		if p.beat != nil {
			p.Apply(*p.beat)
			p.knew, p.beat = p.beatAt, nil
			c.note("%d hears its heartbeat's answer", n)
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

// answer lets a pod's question reach the table, or be lost.
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
		c.note("%d is answered %+v", n, p.answers)
	}
	if c.r.IntN(6) == 0 {
		p.asks, p.replied = nil, false
		c.note("%d hears no answer", n)
	}
}

// settle lets a pod hear an answer.
func (c *contest) settle(n int) {
	p := c.pods[n]
	p.Lanes.Settle(p.asks, p.answers, time.Now(), func() bool { return p.boot == p.asker })
	p.asks, p.replied = nil, false
	c.note("%d hears the answer", n)
}

// lapse is what becomes of a pod whose row was closed: its jobs have been taken back, its slots too, and it joins anew.
func (c *contest) lapse(n int) {
	p := c.pods[n]
	c.NoErr(c.st.Leave(c.ctx, p.boot))
	_, err := store.VoidSlots(c.ctx, c.st, []string{p.boot})
	c.NoErr(err)
	p.zombies, p.running, p.beat = p.zombies+p.running, 0, nil
	c.join(p)
	p.DropGrants()
	c.note("%d lapses and joins anew, with %d zombies", n, p.zombies)
}

// No more run than there are slots, whatever is lost, late, lowered or dead: judged by the limits that the pod which starts
// a job may have known. And when nothing is lost any more, the lane is as full as it can be.
func TestNoOrderOfEventsOverfillsALimitedLane(t *testing.T) {
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
			c := &contest{I: is.New(t), ctx: t.Context(), st: st, r: rand.New(rand.NewPCG(seed, 1)), exec: func(sql string, args ...any) {
				if _, err := pool.Exec(t.Context(), sql, args...); err != nil {
					t.Fatal(err)
				}
			}}
			for range 2 + c.r.IntN(3) {
				p := &claimant{Lanes: NewLanes(4, time.Second, nil)}
				c.join(p)
				c.pods = append(c.pods, p)
			}
			_, err = st.Enqueue(t.Context(), c.pods[0].boot, []store.NewJob{{ID: 1, Kind: "k", Lane: "default", Args: []byte(`{}`)}}) // it waits for ever
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

// calm lets every pod hear and end everything, and checks that all slots can be used.
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
	full := func() (free int) {
		for _, p := range c.pods {
			free += p.free(p.byName["default"])
		}
		return free
	}
	for round := 0; full() < limit; round++ {
		if round > 40 {
			t.Fatalf("of %d slots %d can be used", limit, full())
		}
		for n, p := range c.pods {
			b, err := c.st.Heartbeat(c.ctx, p.boot, time.Hour, false)
			c.NoErr(err)
			p.Apply(b)
			p.Touch("default")
			p.asks, _ = p.Lanes.Asks(true, time.Now())
			p.asker = p.boot
			p.answers, err = store.SettleSlots(c.ctx, c.st, p.asker, p.asks, []string{"k"})
			c.NoErr(err)
			c.settle(n)
		}
	}
}
