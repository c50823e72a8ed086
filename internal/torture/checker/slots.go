package checker

import (
	"cmp"
	"slices"
	"time"
)

// slotsHold (I16): the handlers of one process, of all its boots, are never more than its slots, and those of one lane in
// one process never more than the lane's limit there, by the ledger's own order of what began and ended. A limit counts
// once every pod has heard of it; handlers that were there when it was lowered stay. What holds over all processes together
// is said at fleetHolds.
func slotsHold(v *view, f *Finding) {
	v.fleetHolds(f)
	type turn struct {
		n     int64
		at    time.Time
		c     *claim
		l     *life
		began bool
	}
	var turns []turn
	for _, s := range v.ordered {
		if s.job == nil || s.tampered {
			continue
		}
		for _, c := range s.claims {
			b, start := v.boot(c.boot), c.start()
			if b.life == nil || start == nil {
				continue
			}
			turns = append(turns, turn{start.N, start.T, c, b.life, true})
			// Without a last line it has certainly not ended before its claim has, which is all that may be said of it.
			switch {
			case c.done != nil:
				turns = append(turns, turn{c.done.N, c.done.T, c, b.life, false})
			case c.end != nil:
				turns = append(turns, turn{0, c.end.At, c, b.life, false})
			}
		}
	}
	slices.SortFunc(turns, func(a, b turn) int { return cmp.Or(a.at.Compare(b.at), cmp.Compare(a.n, b.n)) })
	running := map[*life]map[string]int{}
	for _, t := range turns {
		lane := t.c.of.job.Lane
		if running[t.l] == nil {
			running[t.l] = map[string]int{}
		}
		if !t.began {
			running[t.l][lane]--
			running[t.l][""]--
			continue
		}
		running[t.l][lane]++
		running[t.l][""]++
		f.judge(running[t.l][""] <= v.slotsOf(t.l), t.c.of.id, "job %d started on %s at %s as the %dth handler there, in %d slots", t.c.of.id,
			t.l.Pod, clock(t.at), running[t.l][""], v.slotsOf(t.l))
		if limit, known := v.limitAt(lane, t.c, t.l); known {
			f.judge(running[t.l][lane] <= limit, t.c.of.id, "job %d started on %s at %s as the %dth handler of lane %q there, which has %d slots",
				t.c.of.id, t.l.Pod, clock(t.at), running[t.l][lane], lane, limit)
		}
	}
}

// limitAt is the limit of a lane that a process certainly knew of when it claimed a job and started its handler: none when
// the lane or the gate is shut.
func (v *view) limitAt(lane string, c *claim, l *life) (limit int, known bool) {
	from, to := c.event.At.Add(-v.run.Settings.Heartbeat-v.slack), c.start().T
	if l.Ready == nil || !v.trouble.calm(l.Pod, from, to) {
		return 0, false
	}
	if gate, ok := during(v.lanes.gate, from, to); ok && !gate.open {
		return 0, true
	}
	r, ok := v.lanes.known(lane, from, to)
	if ok && !r.open {
		return 0, true
	}
	return r.slots, ok && r.slots != unlimited
}
