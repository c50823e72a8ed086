package checker

import (
	"cmp"
	"slices"
	"time"
)

// slotsHold (I16) checks that the handlers of one process, counted over all its pod IDs, never exceed its slots. The handlers in one lane
// must not exceed the lane's limit in that process. The order in which handlers start and end is taken from the ledger. A limit applies
// once every pod has received it, and handlers that were running when a limit was lowered may continue. [view.fleetHolds] checks the limits
// across all processes.
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
			b, start := v.podID(c.podID), c.start()
			if b.life == nil || start == nil {
				continue
			}
			turns = append(turns, turn{start.N, start.T, c, b.life, true})
			// If the ledger has no last line for a handler, it is known only that the handler did not end before its claim.
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
		f.judge(running[t.l][""] <= v.slotsOf(t.l), t.c.of.id, "job %d started on %s at %s as handler number %d there, in %d slots", t.c.of.id,
			t.l.Pod, clock(t.at), running[t.l][""], v.slotsOf(t.l))
		if limit, known := v.limitAt(lane, t.c, t.l); known {
			f.judge(running[t.l][lane] <= limit, t.c.of.id, "job %d started on %s at %s as handler number %d of lane %q there, which has %d slots",
				t.c.of.id, t.l.Pod, clock(t.at), running[t.l][lane], lane, limit)
		}
	}
}

// limitAt returns the lane limit that a process definitely knew when it claimed a job and started its handler. The limit is 0 if the lane
// or the queue is closed.
func (v *view) limitAt(lane string, c *claim, l *life) (limit int, known bool) {
	from, to := c.event.At.Add(-v.run.Settings.Heartbeat-v.slack), c.start().T
	if l.Ready == nil || !v.trouble.calm(l.Pod, from, to) {
		return 0, false
	}
	if queue, ok := during(v.lanes.queue, from, to); ok && !queue.open {
		return 0, true
	}
	r, ok := v.lanes.known(lane, from, to)
	if ok && !r.open {
		return 0, true
	}
	return r.slots, ok && r.slots != unlimited
}
