package store_test

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/trapeze-run/trapeze/internal/store"
	"github.com/trapeze-run/trapeze/internal/store/admin"
	"github.com/trapeze-run/trapeze/job"
)

// keyModel is what one unique key should do, on a clock that stands still between the steps of a test. Its times are in seconds.
type keyModel struct {
	now       int
	waiting   *waitingModel
	lastStart int // of a throttled job
	running   []*store.Claimed
}

type waitingModel struct {
	id                 int64
	args               string
	created, due       int
	pending, throttled bool
	replaced           int
}

// submit returns what a submission should do.
func (m *keyModel) submit(id int64, args string, replace bool, wait, most, every int) string {
	j := m.waiting
	switch {
	case j == nil:
		j = &waitingModel{id: id, args: args, created: m.now, due: m.now + wait, throttled: every > 0}
		if every > 0 {
			j.due = max(m.now, m.lastStart+every)
		}
		j.pending = j.due == m.now
		m.waiting = j
		return "created"
	case !replace:
		return "merged"
	}
	j.args = args
	j.replaced++
	if wait > 0 && !j.pending {
		j.due = min(m.now+wait, max(j.created+most, min(j.due, m.now)))
	}
	return "replaced"
}

// passes advances the clock.
func (m *keyModel) passes(seconds int) {
	m.now += seconds
	if m.waiting != nil && m.waiting.due <= m.now {
		m.waiting.pending = true
	}
}

func TestRandomHistoriesOfKey(t *testing.T) {
	t.Parallel()
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	w := newWorld(t)
	podID := w.pod("a")
	did := map[string]int{}
	for range 12 {
		m := &keyModel{lastStart: -1e6}
		history := ""
		for no := range 40 {
			step := []string{"submit", "submit", "replace", "replace", "debounce", "debounce", "debounce", "throttle", "throttle", "pass", "pass", "claim", "claim", "end", "cancel"}[random.IntN(15)]
			wait := 10 + 10*random.IntN(3)
			most := wait + 10*random.IntN(5)
			args := fmt.Sprintf(`{"n":%d}`, no)
			history += fmt.Sprintf("%s(%d,%d) ", step, wait, most)
			switch step {
			case "pass":
				w.passes(time.Duration(wait) * time.Second)
				m.passes(wait)
				_, _, err := w.Promote(w.ctx(), 100)
				w.is.NoErr(err)
			case "claim":
				m.claim(w, podID, history)
			case "end":
				if len(m.running) == 0 {
					continue
				}
				c := m.running[0]
				m.running = m.running[1:]
				if random.IntN(3) == 0 {
					w.is.NoErr(second(w.Park(w.ctx(), leaseOf(podID, c), 10*time.Second, store.Retry{Message: "boom"})))
				} else {
					w.end(podID, ending(c))
				}
			case "cancel":
				if m.waiting == nil {
					continue
				}
				w.is.NoErr(second(admin.Cancel(w.ctx(), w.Store, m.waiting.id, 0, false, "ann", ignoreLease)))
				m.waiting = nil
			default:
				change, every := replacing("sync"), 0
				switch step {
				case "submit":
					change = func(n *store.NewJob) { replacing("sync")(n); n.Replace = false }
				case "debounce":
					change = debounced(time.Duration(wait)*time.Second, time.Duration(most)*time.Second)
				case "throttle":
					change, every = throttled(time.Duration(wait)*time.Second), wait
				}
				if step != "debounce" {
					wait = 0
				}
				what, holder := w.took(change, withArgs(args))
				if want := m.submit(holder, args, step != "submit", wait, most, every); what != want {
					t.Fatalf("%s: the submission was %s, want %s", history, what, want)
				}
				did[what]++
			}
			m.check(w, history)
		}
		w.passes(time.Hour)
		m.passes(3600)
		_, _, err := w.Promote(w.ctx(), 100)
		w.is.NoErr(err)
		m.claim(w, podID, history) // nothing is left behind
		for _, c := range m.running {
			w.end(podID, ending(c))
		}
		w.exec(`update trapeze.jobs set throttled_at = null`) // the next history begins without a past
	}
	t.Log(did)
}

// claim claims all pending jobs: the one that waits with the key, if it is due, and those that run again.
func (m *keyModel) claim(w *world, podID, history string) {
	w.t.Helper()
	due := m.waiting != nil && m.waiting.pending
	for _, c := range w.claims(podID, 10) {
		if j := m.waiting; due && c.ID == j.id {
			if string(c.Args) != j.args {
				w.t.Fatalf("%s: claimed %s, want %s", history, c.Args, j.args)
			}
			if j.throttled {
				m.lastStart = m.now
			}
			m.waiting, due = nil, false
		} else if c.Attempt == 1 {
			w.t.Fatalf("%s: claimed job %d too early", history, c.ID)
		}
		m.running = append(m.running, c)
	}
	if due {
		w.t.Fatalf("%s: job %d was not claimed", history, m.waiting.id)
	}
}

// check compares the tables with the model.
func (m *keyModel) check(w *world, history string) {
	w.t.Helper()
	if keys := w.count(`select count(*) from trapeze.unique_keys`); keys != boolToInt(m.waiting != nil) {
		w.t.Fatalf("%s: %d keys are held", history, keys)
	}
	if m.waiting == nil {
		return
	}
	j := w.at(m.waiting.id)
	if string(j.Args) != m.waiting.args || j.Replaced != m.waiting.replaced || j.State != job.Pending {
		w.t.Fatalf("%s: job %d is %s with args %s, replaced %d times, want %+v", history, j.ID, j.State, j.Args, j.Replaced, *m.waiting)
	}
	if live := w.count(`select count(*) from trapeze.live where id = $1`, j.ID) == 1; live != m.waiting.pending {
		w.t.Fatalf("%s: job %d is pending: %v, want %+v at %d", history, j.ID, live, *m.waiting, m.now)
	} else if off := 0; !live {
		if off = w.dueIn(j.ID) - (m.waiting.due - m.now); off < -4 || off > 4 {
			w.t.Fatalf("%s: job %d is due %d s off, want %+v at %d", history, j.ID, off, *m.waiting, m.now)
		}
	}
}
