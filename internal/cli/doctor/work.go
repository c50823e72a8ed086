package doctor

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/trapeze-run/trapeze/internal/humanize"
	"github.com/trapeze-run/trapeze/internal/shell"
	"github.com/trapeze-run/trapeze/internal/store/view"
)

// pods finds those that are about to be taken for dead, or were although their leases had not ended, and whether there are any.
func (d *doctor) pods(ctx context.Context) error {
	if err := d.leases(ctx); err != nil {
		return err
	}
	pods, err := view.ReadPodHealth(ctx, d.store)
	if err != nil {
		return err
	}
	alive, remote, slots := 0, 0, 0
	for _, p := range pods {
		switch {
		case p.Lease < 0 && p.Remote:
			d.find("pods", warning, fmt.Sprintf("remote worker %s (%s) has not been heard of: its stream is gone, and its lease ended %s ago", p.Name, p.Boot, humanize.Seconds(-p.Lease)),
				"nothing, when it ended: others run its jobs. If it lives: see in its log whether it reaches a pod of its --server, and what that says to its token")
			continue
		case p.Lease < 0:
			d.find("pods", warning, fmt.Sprintf("%s (%s) has not renewed its lease, which ended %s ago", p.Name, p.Boot, humanize.Seconds(-p.Lease)),
				"nothing, when it died: the other pods take over. If it lives: see whether it is frozen, starved of CPU, or cut off from the database")
			continue
		case p.Lease > time.Hour.Seconds():
			d.find("pods", warning, fmt.Sprintf("%s (%s) holds a lease of another %s: the database's clock was set back", p.Name, p.Boot, humanize.Seconds(p.Lease)),
				"set the database's clock by NTP; the pods take such a lease for lapsed")
		case p.Drained:
			d.find("pods", warning, fmt.Sprintf("%s (%s) is drained: it starts nothing", p.Name, p.Boot), "trapeze resume --pod "+shell.Word(p.Name)+", when its maintenance is over")
			continue
		}
		if p.Remote && p.Streams > mostStreams && float64(p.Streams) > p.Up/60 {
			d.find("pods", warning, fmt.Sprintf("remote worker %s (%s) loses its stream again and again: it has opened %d in %s", p.Name, p.Boot, p.Streams, humanize.Seconds(p.Up)),
				"see in its log why. Does a proxy between cut connections that are quiet? Do two processes have the same worker id?")
		}
		switch {
		case p.Slots == 0 || p.Draining:
			continue
		case p.Remote:
			remote++
		default:
			alive++
		}
		slots += p.Slots
	}
	if alive+remote == 0 {
		return d.noPods(ctx, pods)
	}
	var who []string
	if alive > 0 {
		who = append(who, humanize.Count(alive, "pod", "pods"))
	}
	if remote > 0 {
		who = append(who, humanize.Count(remote, "remote worker", "remote workers"))
	}
	starts := "start"
	if alive+remote == 1 {
		starts = "starts"
	}
	d.find("pods", healthy, fmt.Sprintf("%s %s jobs with %s", strings.Join(who, " and "), starts, humanize.Count(slots, "slot", "slots")), "")
	return nil
}

// noPods judges that no pod starts jobs. With a pod that lives, and no job that is due, it may be on purpose.
func (d *doctor) noPods(ctx context.Context, pods []view.PodHealth) error {
	work, err := view.ReadWaitingWork(ctx, d.store)
	if err != nil {
		return err
	}
	status, all := warning, waits{}
	for _, w := range work {
		all.add(w)
	}
	if all.jobs > 0 || !slices.ContainsFunc(pods, func(p view.PodHealth) bool { return p.Lease > 0 }) {
		status = failing
	}
	d.find("pods", status, fmt.Sprintf("none of %s starts jobs: %s", humanize.Count(len(pods), "open pod", "open pods"), all),
		"start one: trapeze serve, or your own service; mind TRAPEZE_RUNNER=false, and trapeze resume --pod NAME for one that is drained")
	return nil
}

// mostStreams is how many streams a remote worker may have opened before more than one a minute is too often.
const mostStreams = 10

// leases finds pods that others took for dead while their leases lasted. A pod does that to a lease of more than twice its own.
func (d *doctor) leases(ctx context.Context) error {
	pods, err := view.Pods(ctx, d.store, true)
	if err != nil {
		return err
	}
	for _, p := range pods {
		if p.Closed == nil || *p.Closed != "lapsed" || !p.LeaseUntil.After(*p.ClosedAt) {
			continue
		}
		d.find("pods", warning, fmt.Sprintf("%s (%s) was taken for dead %s before its lease ended", p.Name, p.Boot, humanize.Round(p.LeaseUntil.Sub(*p.ClosedAt))),
			"give all pods the same lease (TRAPEZE_LEASE): one pod takes a lease of more than twice its own for lapsed; or the database's clock was set back")
		break // the others say the same
	}
	return nil
}

// waits is what waits in a lane.
type waits struct {
	jobs   int
	oldest time.Time // zero: nothing that has a moment
}

func (w *waits) add(one view.WaitingWork) {
	w.jobs += one.Waiting
	if one.Oldest != nil && (w.oldest.IsZero() || one.Oldest.Before(w.oldest)) {
		w.oldest = *one.Oldest
	}
}

// long reports whether the oldest has been due for longer than it should.
func (w waits) long(d *doctor, now time.Time) bool {
	return !w.oldest.IsZero() && now.Sub(w.oldest) > d.overdue
}

func (w waits) String() string {
	text := humanize.Count(w.jobs, "job waits", "jobs wait")
	if !w.oldest.IsZero() {
		text += ", the oldest due for " + humanize.Since(&w.oldest, time.Now())
	}
	return text
}

// lanes finds jobs that nobody will run: no pod has their handler, or their lane is closed.
func (d *doctor) lanes(ctx context.Context) error {
	work, err := view.ReadWaitingWork(ctx, d.store)
	if err != nil {
		return err
	}
	gates, err := view.LaneGates(ctx, d.store)
	if err != nil {
		return err
	}
	before := len(d.findings)
	d.kinds(work)
	byLane := map[string]*waits{}
	for _, w := range work {
		if byLane[w.Lane] == nil {
			byLane[w.Lane] = &waits{}
		}
		byLane[w.Lane].add(w)
	}
	all := waits{}
	for _, g := range gates {
		w := byLane[g.Name]
		if w == nil {
			w = &waits{}
		}
		all.jobs += w.jobs
		d.lane(g, *w, time.Now())
	}
	if len(d.findings) == before {
		d.find("lanes", healthy, fmt.Sprintf("%s open, %s due", humanize.Count(len(gates), "lane", "lanes"), humanize.Count(all.jobs, "job", "jobs")), "")
	}
	return nil
}

// kinds finds kinds of which jobs wait and that no pod runs.
func (d *doctor) kinds(work []view.WaitingWork) {
	orphans, order := map[string]*waits{}, []string{}
	for _, w := range work {
		if w.Pods > 0 {
			continue
		}
		if orphans[w.Kind] == nil {
			orphans[w.Kind] = &waits{}
			order = append(order, w.Kind)
		}
		orphans[w.Kind].add(w)
	}
	for _, kind := range order {
		d.find("kinds", failing, fmt.Sprintf("no live pod has a handler of %q: %s", kind, orphans[kind]),
			"start a pod that registers it (mind TRAPEZE_KINDS); see them: trapeze jobs --kind "+shell.Word(kind)+" --state pending")
	}
}

// lane judges one lane with what waits in it.
func (d *doctor) lane(g view.LaneGate, w waits, now time.Time) {
	if why, do := closedBy(g); why != "" {
		status := warning
		switch {
		case w.jobs == 0 && (g.Paused || g.Frozen || g.Drained || !g.Enabled):
			return // on purpose, and nobody waits
		case w.long(d, now):
			status = failing
		}
		d.find("lanes", status, fmt.Sprintf("lane %s %s: %s", g.Name, why, w), do)
		return
	}
	if len(g.Kinds) > 0 && g.Pods == 0 {
		d.find("lanes", warning, fmt.Sprintf("no live pod could run what lane %s is for: %s", g.Name, humanize.Short(strings.Join(g.Kinds, ", "), 60)),
			"start a pod that registers one of these kinds")
	}
	if w.long(d, now) {
		d.find("lanes", warning, fmt.Sprintf("lane %s: %s", g.Name, w),
			"trapeze ps: are all slots in use? Then raise slots or add pods. If not: Why does this job not run? in docs/operating.md")
	}
}

// closedBy says what keeps a lane from starting anything, and how to end that.
func closedBy(g view.LaneGate) (why, do string) {
	switch {
	case g.Frozen:
		return "is frozen, as all lanes are", "trapeze thaw, when the maintenance is over"
	case g.Paused:
		return "is paused, as all lanes are", "trapeze unpause"
	case g.Drained:
		return "is drained", "trapeze resume " + shell.Word(g.Name)
	case !g.Enabled:
		return "is disabled", "trapeze lane set " + shell.Word(g.Name) + " enabled=true"
	case g.Slots != nil && *g.Slots == 0:
		return "has 0 slots", "trapeze lane set " + shell.Word(g.Name) + " slots=4, or another limit that the work bears"
	case g.SlotsPerPod != nil && *g.SlotsPerPod == 0:
		return "has 0 slots a pod", "trapeze lane set " + shell.Word(g.Name) + " slots_per_pod=2, or another limit that a pod bears"
	}
	return "", ""
}
