package store_test

import (
	"math"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/trapeze-run/trapeze/internal/store"
	"github.com/trapeze-run/trapeze/internal/store/admin"
	"github.com/trapeze-run/trapeze/job"
)

// rateModel is a leaky bucket: what starts have used up flows off at the rate, and at most the burst fits in. Its times are in hours, on a clock that stands
// still between the steps, so that the time that the test takes is negligible.
type rateModel struct {
	now, used   float64
	rate, burst float64 // per hour; 0 if the lane has no rate
	holdEnd     float64
	past        []rateChange
	starts      []float64 // since the lane has had a rate
	lent        int       // of the latest starts, those that can be given back
}

// rateChange is a rate that is in force from a time on.
type rateChange struct{ at, rate, burst float64 }

// negligible is the number of starts that a rate allows while a history runs.
const negligible = 0.05

func (m *rateModel) pass(hours float64) {
	m.now += hours
	m.used = max(0, m.used-hours*m.rate)
}

func (m *rateModel) hold(hours float64) { m.holdEnd = max(m.holdEnd, m.now+hours) }

func (m *rateModel) change(rate, burst float64) {
	m.rate, m.burst = rate, burst
	m.past = append(m.past, rateChange{m.now, rate, burst})
}

func (m *rateModel) remove() { *m = rateModel{now: m.now, holdEnd: m.now} }

// free is the number of starts that the lane has, which may be a fraction or less than 0.
func (m *rateModel) free() float64 {
	switch {
	case m.holdEnd > m.now:
		return 0
	case m.rate > 0:
		return m.burst - m.used
	}
	return math.Inf(1)
}

// allowed is the number of starts that a lane allows in a period: the highest burst, and the rate in its course.
func (m *rateModel) allowed(from, to float64) (n float64) {
	var burst float64
	for i, c := range m.past {
		end := math.Inf(1)
		if i+1 < len(m.past) {
			end = m.past[i+1].at
		}
		if c.at <= to && end >= from {
			burst = max(burst, c.burst)
			n += (min(to, end) - max(from, c.at)) * c.rate
		}
	}
	return burst + n
}

// The test runs random histories of a lane's rate: starts that are taken and given back, holds, changes, and time that passes. The store must do what the
// model does. In no period may more jobs start than the burst and the rates allow, none during a hold, and no start may come later than was said.
func TestRandomRateHistories(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	lane := job.LimitOf{Scope: job.LaneScope, Name: "default"}
	began := time.Now()
	limitHistories(t)
	done := map[string]int{}
	rapid.Check(t, func(t *rapid.T) {
		if time.Since(began) > patience {
			return
		}
		w.exec(`delete from trapeze.limits`)
		m := &rateModel{}
		must := func(err error) {
			if err != nil {
				t.Fatal(err)
			}
		}
		pass := func(hours float64) {
			w.exec(`update trapeze.limits set next_start = next_start - $1 * interval '1 hour', held_until = held_until - $1 * interval '1 hour'`, hours)
			m.pass(hours)
		}
		take := func(n int) store.Starts {
			free := m.free()
			got, err := store.TakeStarts(w.ctx(), w.Store, []store.Want{{Lane: "default", N: n}})
			must(err)
			s, limited := got["default"]
			if !limited {
				if !math.IsInf(free, 1) {
					t.Fatalf("the lane has no limit, want %.3f starts", free)
				}
				return store.Starts{N: n}
			}
			low, high := math.Max(0, math.Floor(free-negligible)), math.Max(0, math.Floor(free+negligible))
			if got := float64(s.N); got < math.Min(float64(n), low) || got > math.Min(float64(n), high) {
				t.Fatalf("took %d of %d starts, want %.3f", s.N, n, free)
			}
			if m.rate == 0 {
				return s
			}
			m.used += float64(s.N)
			m.lent = s.N
			for range s.N {
				m.starts = append(m.starts, m.now)
			}
			for i, from := range m.starts {
				if started, most := len(m.starts)-i, m.allowed(from, m.now); float64(started) > most+negligible {
					t.Fatalf("%d jobs started within %.3f h, want at most %.3f", started, m.now-from, most)
				}
			}
			return s
		}
		steps := map[string]func(*rapid.T){
			"take": func(t *rapid.T) { take(rapid.IntRange(0, 12).Draw(t, "n")) },
			"wait for the next": func(t *rapid.T) {
				if s := take(50); s.N < 50 {
					pass(s.Next.Hours() + 0.001)
					if take(1).N != 1 {
						t.Fatalf("no start is free after %s", s.Next)
					}
				}
			},
			"give": func(t *rapid.T) {
				n := rapid.IntRange(0, m.lent).Draw(t, "n")
				must(store.GiveStarts(w.ctx(), w.Store, map[string]int{"default": n}))
				m.starts, m.lent, m.used = m.starts[:len(m.starts)-n], m.lent-n, max(0, m.used-float64(n))
			},
			"hold": func(t *rapid.T) {
				hours := rapid.IntRange(1, 30).Draw(t, "hours")
				must(store.HoldLane(w.ctx(), w.Store, "default", time.Duration(hours)*time.Hour+18*time.Second)) // no end coincides with another step
				m.hold(float64(hours) + 0.005)
			},
			"change": func(t *rapid.T) {
				rate, per, burst := rapid.IntRange(1, 20).Draw(t, "rate"), rapid.IntRange(1, 24).Draw(t, "per"), rapid.IntRange(1, 10).Draw(t, "burst")
				seconds := job.Seconds(time.Duration(per) * time.Hour)
				must(second(admin.SetLimit(w.ctx(), w.Store, job.KeyLimitChange{LimitOf: lane, Rate: job.To(rate), Per: &seconds, Burst: &burst}, "ann")))
				m.change(float64(rate)/float64(per), float64(burst))
			},
			"remove": func(t *rapid.T) {
				if rapid.IntRange(0, 3).Draw(t, "") == 0 {
					must(second(admin.SetLimit(w.ctx(), w.Store, job.KeyLimitChange{LimitOf: lane, Rate: job.NoLimit[int]()}, "ann")))
					m.remove()
				}
			},
		}
		for _, name := range []string{"pass", "pass some more"} {
			steps[name] = func(t *rapid.T) { pass(float64(rapid.IntRange(1, 200).Draw(t, "minutes")) / 60) }
		}
		for name, step := range steps {
			done[name] += 0
			steps[name] = func(t *rapid.T) { step(t); done[name]++ }
		}
		t.Repeat(steps)
	})
	t.Log(done)
	for name, n := range done {
		if n == 0 {
			t.Errorf("no history had the step %q", name)
		}
	}
}
