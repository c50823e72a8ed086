package store_test

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/trapeze-run/trapeze/internal/store"
)

var keysSeed = flag.Uint64("keys.seed", 0, "run only this history of TestRandomKeyHistories")

// The test runs random histories of jobs with keys and subjects, whose limits change. After each step it checks the places, the limits and the guards. A
// step notes the lines that the engine would note; once these are admitted, no other job may be left that could be admitted. At the end, all jobs run.
//
// A failure prints its seed and its steps. -keys.seed=N repeats it.
func TestRandomKeyHistories(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.exec(`insert into trapeze.lanes (name) values ('side')`)
	w.exec(`insert into trapeze.kinds (kind, per_key) values ('few', 2)`)
	first, last := keySeeds()
	if *keysSeed > 0 {
		first, last = *keysSeed, *keysSeed
	}
	taken := map[string]int{}
	for seed, began := first, time.Now(); seed <= last && time.Since(began) < patience; seed++ {
		h := &keyHistory{world: w, r: rand.New(rand.NewPCG(seed, 1)), seed: seed, taken: taken}
		h.run(20 + h.r.IntN(60))
	}
	t.Logf("seeds %d to %d: %v", first, last, taken)
}

// keyHistory is one random history.
type keyHistory struct {
	*world
	r     *rand.Rand
	seed  uint64
	taken map[string]int
	log   []string

	pods   []string
	held   map[int64]keyClaim   // the claims of all pods
	before map[int64]keyedRow   // live after the previous step
	bounds map[int64]placeBound // per job in live, the highest limits since it got its places
	heirs  map[int64]int64      // the parent of each next step
}

type keyClaim struct {
	pod string
	*store.Claimed
}

func (r keyedRow) String() string {
	return fmt.Sprintf("%s in %s key %q subject %q places %s %s of %s %s, running %t", r.Kind, r.Lane, r.Key, r.Subject, shown(r.LanePlace), shown(r.KindPlace), shown(r.LaneMost), shown(r.KindMost), r.Running)
}

type keyedRow struct {
	ID               int64
	Kind, Lane, Key  string
	Subject          string
	LanePlace        *int
	KindPlace        *int
	LaneMost         *int
	KindMost         *int
	LaneSlots        *int // the limit without the window
	Running, Guarded bool
}

type placeBound struct{ lane, kind int }

// keyedRowsSQL reads live with the limits that hold now. It computes these as the documentation of trapeze.limits describes them.
const keyedRowsSQL = `
select l.id, l.kind, l.lane, coalesce(l.key, ''), l.subject, l.lane_place, l.kind_place,
	least(coalesce(one.slots, each.slots), coalesce(one.weight, each.weight, 1) * greatest(20, 4 * least(n.slots, (select sum(slots) from trapeze.pods where closed_at is null)))::int),
	coalesce(k.slots, ks.slots, d.per_key), coalesce(one.slots, each.slots), l.state = 'running', exists (select from trapeze.subjects c where c.kind = l.kind and c.subject = l.subject and c.state = 'held' and c.job_id = l.id)
from trapeze.live l join trapeze.lanes n on n.name = l.lane left join trapeze.kinds d on d.kind = l.kind
left join trapeze.limits one on one.scope = 'lane' and one.name = l.lane and one.key = l.key
left join trapeze.limits each on each.scope = 'lane' and each.name = l.lane and each.key = '*'
left join trapeze.limits k on k.scope = 'kind' and k.name = l.kind and k.key = l.key
left join trapeze.limits ks on ks.scope = 'kind' and ks.name = l.kind and ks.key = '*'
order by l.id`

func (h *keyHistory) failf(format string, a ...any) {
	h.t.Helper()
	h.t.Fatalf("seed %d, step %d: %s\n%v", h.seed, len(h.log), fmt.Sprintf(format, a...), h.steps())
}

func (h *keyHistory) steps() (list string) {
	for i, s := range h.log {
		list += fmt.Sprintf("%3d %s\n", i+1, s)
	}
	return list
}

func (h *keyHistory) run(n int) {
	h.t.Helper()
	h.exec(`delete from trapeze.limits`)
	h.exec(`update trapeze.lanes set slots = null, drained = false`)
	h.pods = []string{h.pod("a"), h.pod("b")}
	h.held, h.before, h.bounds, h.heirs = map[int64]keyClaim{}, map[int64]keyedRow{}, map[int64]placeBound{}, map[int64]int64{}
	for range n {
		h.step(keySteps[h.weighted()])
	}
	h.drain()
	for _, podID := range h.pods {
		h.exec(`update trapeze.pods set closed_at = now(), closed = 'left', swept_at = now() where id = $1`, podID)
	}
}

type keyStep struct {
	name   string
	weight int
	do     func(*keyHistory) []store.Line
}

var keySteps = []keyStep{
	{"enqueue", 6, (*keyHistory).enqueue}, {"enqueue in transaction", 2, (*keyHistory).enqueueIn}, {"claim", 8, (*keyHistory).claim},
	{"end", 8, (*keyHistory).finish}, {"park", 3, (*keyHistory).park}, {"hand back", 2, (*keyHistory).handBack},
	{"come due", 2, (*keyHistory).comeDue}, {"promote", 3, (*keyHistory).promote}, {"cancel", 2, (*keyHistory).cancel},
	{"nice", 2, (*keyHistory).nice}, {"move", 1, (*keyHistory).move}, {"pod dies", 1, (*keyHistory).podDies},
	{"limit", 4, (*keyHistory).limit}, {"lane", 1, (*keyHistory).lane}, {"operator retry", 1, (*keyHistory).again},
}

func (h *keyHistory) weighted() int {
	total := 0
	for _, s := range keySteps {
		total += s.weight
	}
	for pick, i := h.r.IntN(total), 0; ; i++ {
		if pick -= keySteps[i].weight; pick < 0 {
			return i
		}
	}
}

// step runs a step, admits the jobs of its lines, and checks that no job is left. Now and then the process fails before it admits them.
func (h *keyHistory) step(s keyStep) {
	h.t.Helper()
	h.log = append(h.log, s.name)
	h.taken[s.name]++
	lines := s.do(h)
	h.check("after the step")
	if h.r.IntN(8) == 0 {
		h.note("nobody admits the next jobs")
		h.must(func() error { return second(h.AdmitMissed(h.ctx())) })
		h.check("after the poll")
	} else if len(lines) > 0 {
		h.must(func() error {
			jobs, err := h.AdmitNext(h.ctx(), lines...)
			h.note("admits %d of %v", len(jobs), lines)
			return err
		})
		h.check("after the admission")
	}
	for try := 0; ; try++ {
		before := h.before
		missed, err := h.AdmitMissed(h.ctx())
		if h.check("after the poll"); err == nil && len(missed) == 0 {
			return
		}
		if err != nil || try > 20 || !exchanged(before, h.before) {
			h.failf("a poll admits %+v, which nobody has admitted: %v\nlive before: %v\nlive after: %v", missed, err, before, h.before)
		}
	}
}

// exchanged reports whether jobs have only got places or subjects that others have left. When an admission fills the last places, a more urgent job gets
// the place of a pending one at the next admission. If that one held a place in its lane and one of its kind, two jobs can take them. If it held its
// subject, another job gets that.
func exchanged(before, after map[int64]keyedRow) bool {
	left := map[store.Line]bool{}
	for id, row := range before {
		if _, is := after[id]; !is && row.Key != "" {
			for _, line := range store.Lines(row.Kind, row.Subject, row.Key) {
				left[line] = true
			}
		}
	}
	for id, row := range after {
		if _, was := before[id]; !was && !slices.ContainsFunc(store.Lines(row.Kind, row.Subject, row.Key), func(l store.Line) bool { return left[l] }) {
			return false
		}
	}
	return true
}

func (h *keyHistory) note(format string, a ...any) {
	h.log[len(h.log)-1] += ": " + fmt.Sprintf(format, a...)
}

func (h *keyHistory) must(do func() error) {
	h.t.Helper()
	if err := do(); err != nil {
		h.failf("%v", err)
	}
}

// check reads live and checks it against the previous state.
func (h *keyHistory) check(when string) {
	h.t.Helper()
	list, err := store.Rows(h.ctx(), h.Store, pgx.RowToStructByPos[keyedRow], keyedRowsSQL)
	if err != nil {
		h.failf("%v", err)
	}
	now, subjects := map[int64]keyedRow{}, map[[2]string]int64{}
	type group struct {
		count, most int
		news        []int64
	}
	groups := map[[3]string]*group{}
	add := func(most *int, row keyedRow, name ...string) {
		if most == nil {
			return
		}
		g := groups[[3]string(name)]
		if g == nil {
			g = &group{most: *most}
			groups[[3]string(name)] = g
		}
		g.count++
		if _, was := h.before[row.ID]; !was {
			g.news = append(g.news, row.ID)
		}
	}
	for _, row := range list {
		now[row.ID] = row
		if row.Subject != "" {
			at := [2]string{row.Kind, row.Subject}
			if other, taken := subjects[at]; taken || !row.Guarded {
				h.failf("%s: job %d of subject %v is live without its guard, beside job %d", when, row.ID, at, other)
			}
			subjects[at] = row.ID
		}
		if row.Key == "" {
			continue
		}
		if row.LanePlace == nil {
			h.failf("%s: job %d is live without a place", when, row.ID)
		}
		if _, was := h.before[row.ID]; !was && (row.LaneSlots != nil && *row.LanePlace > *row.LaneSlots || row.KindMost != nil && (row.KindPlace == nil || *row.KindPlace > *row.KindMost)) {
			h.failf("%s: the new job %d has the places %d and %s beyond the limits %s and %s", when, row.ID, *row.LanePlace, shown(row.KindPlace), shown(row.LaneSlots), shown(row.KindMost))
		}
		b, was := h.bounds[row.ID]
		if parent, ok := h.heirs[row.ID]; ok && !was {
			b = h.bounds[parent]
		}
		b.lane = max(b.lane, *row.LaneMost)
		if row.KindMost != nil {
			b.kind = max(b.kind, *row.KindMost)
		}
		h.bounds[row.ID] = b
		if *row.LanePlace < 1 || *row.LanePlace > b.lane || row.KindPlace != nil && (*row.KindPlace < 1 || *row.KindPlace > b.kind) {
			h.failf("%s: job %d has the places %d and %s beyond its limits %v", when, row.ID, *row.LanePlace, shown(row.KindPlace), b)
		}
		add(row.LaneMost, row, "lane", row.Lane, row.Key)
		add(row.KindMost, row, "kind", row.Kind, row.Key)
	}
	for at, g := range groups {
		had := 0
		for _, row := range h.before {
			if at == [3]string{"lane", row.Lane, row.Key} || at == [3]string{"kind", row.Kind, row.Key} {
				had++
			}
		}
		if g.count > g.most && (g.count > had || len(g.news) > 0 && !h.inherited(g.news)) {
			h.failf("%s: %v has %d jobs in live, of which %v are new; the limit is %d, and there were %d", when, at, g.count, g.news, g.most, had)
		}
	}
	if n := h.count(`select count(*) from trapeze.subjects c where c.state = 'held' and not exists (select from trapeze.live l where l.id = c.job_id)`); n > 0 {
		h.failf("%s: %d guards are held by jobs that are not live", when, n)
	}
	h.before = now
}

// inherited reports whether all jobs have got their places from their parents.
func (h *keyHistory) inherited(ids []int64) bool {
	for _, id := range ids {
		if _, ok := h.heirs[id]; !ok {
			return false
		}
	}
	return true
}

// drain lets all jobs run to their ends.
func (h *keyHistory) drain() {
	h.t.Helper()
	h.exec(`update trapeze.lanes set drained = false`)
	h.is.NoErr(second(h.AdmitMissed(h.ctx())))
	open := func() int {
		return h.count(`select (select count(*) from trapeze.live) + (select count(*) from trapeze.parked)`)
	}
	for idle := 0; open() > 0; idle++ {
		h.exec(`update trapeze.parked set run_after = now() - interval '1 second' where why in ('scheduled', 'retry', 'snooze')`)
		h.step(keyStep{"promote", 0, (*keyHistory).promote})
		for _, podID := range h.pods {
			found, err := h.Claim(h.ctx(), podID, []store.Want{{Lane: "default", N: 100}, {Lane: "side", N: 100}}, []string{"k", "few", "m"}, nil, true)
			h.is.NoErr(err)
			for _, c := range found.Jobs {
				h.held[c.ID], idle = keyClaim{podID, c}, 0
			}
		}
		h.check("after a claim")
		h.step(keyStep{"end all", 0, func(h *keyHistory) (lines []store.Line) {
			for len(h.held) > 0 {
				podID, list := h.some(100)
				var ends []store.Ending
				for _, c := range list {
					e := ending(c.Claimed)
					e.InLine = len(c.Lines()) > 0
					ends = append(ends, e)
				}
				ended, err := h.Finish(h.ctx(), podID, ends)
				h.is.NoErr(err)
				for i, c := range list {
					lines = append(lines, h.ended(c, ends[i], ended[c.ID])...)
				}
			}
			return lines
		}})
		if idle > 3 {
			h.failf("%d jobs never run", open())
		}
	}
}

func shown(n *int) string {
	if n == nil {
		return "none"
	}
	return fmt.Sprint(*n)
}
