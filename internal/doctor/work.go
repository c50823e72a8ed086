package doctor

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/trapeze-run/trapeze/internal/store/view"
	"github.com/trapeze-run/trapeze/internal/text"
	"github.com/trapeze-run/trapeze/job"
	"github.com/trapeze-run/trapeze/scheduler"
)

// pods finds pods with an expired lease, pods that were closed before their lease expired, and fleets that start no jobs.
func (e *examination) pods(ctx context.Context) error {
	if err := e.leases(ctx); err != nil {
		return err
	}
	pods, err := view.ReadPodHealth(ctx, e.store)
	if err != nil {
		return err
	}
	alive, remote, slots := 0, 0, 0
	for _, p := range pods {
		switch {
		case p.Lease < 0 && p.Remote:
			e.find("pods", Warning, fmt.Sprintf("remote worker %s (%s) does not respond: its stream is closed, and its lease expired %s ago", p.Name, p.PodID, text.Seconds(-p.Lease)),
				"nothing if it has ended: others run its jobs. If it is alive, check in its log whether it reaches a pod of its --server and whether the pod accepts its token")
			continue
		case p.Lease < 0:
			e.find("pods", Warning, fmt.Sprintf("%s (%s) has not renewed its lease, which expired %s ago", p.Name, p.PodID, text.Seconds(-p.Lease)),
				"nothing if it died: the other pods take over. If it is alive, check whether it is suspended, starved of CPU, or cut off from the database")
			continue
		case p.Lease > time.Hour.Seconds():
			e.find("pods", Warning, fmt.Sprintf("%s (%s) holds a lease of another %s: the database's clock was set back", p.Name, p.PodID, text.Seconds(p.Lease)),
				"synchronize the database's clock by NTP; the pods treat such a lease as expired")
		case p.Drained:
			e.find("pods", Warning, fmt.Sprintf("%s (%s) is drained: it starts no jobs", p.Name, p.PodID), "trapeze undrain --pod "+text.ShellWord(p.Name)+", after its maintenance")
			continue
		}
		if p.Remote && p.Streams > mostStreams && float64(p.Streams) > p.Up/60 {
			e.find("pods", Warning, fmt.Sprintf("remote worker %s (%s) loses its stream repeatedly: it opened %d in %s", p.Name, p.PodID, p.Streams, text.Seconds(p.Up)),
				"see its log. Check that no proxy closes idle connections, and that no two processes share a worker id")
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
		return e.noPods(ctx, pods)
	}
	var who []string
	if alive > 0 {
		who = append(who, text.Count(alive, "pod", "pods"))
	}
	if remote > 0 {
		who = append(who, text.Count(remote, "remote worker", "remote workers"))
	}
	starts := "start"
	if alive+remote == 1 {
		starts = "starts"
	}
	e.find("pods", Healthy, fmt.Sprintf("%s %s jobs with %s", strings.Join(who, " and "), starts, text.Count(slots, "slot", "slots")), "")
	return nil
}

// noPods reports that no pod starts jobs, which may be intended if a pod is alive and no jobs are due.
func (e *examination) noPods(ctx context.Context, pods []view.PodHealth) error {
	work, err := view.ReadWaitingWork(ctx, e.store)
	if err != nil {
		return err
	}
	status, all := Warning, waits{}
	for _, w := range work {
		all.add(w, e.now)
	}
	if all.jobs > 0 || !slices.ContainsFunc(pods, func(p view.PodHealth) bool { return p.Lease > 0 }) {
		status = Failing
	}
	e.find("pods", status, fmt.Sprintf("none of %s starts jobs: %s", text.Count(len(pods), "open pod", "open pods"), all),
		"start a pod with trapeze serve or your own service, check that TRAPEZE_RUNNER is not false, and undrain a pod with trapeze undrain --pod NAME")
	return nil
}

// mostStreams is the number of streams above which the doctor reports a remote worker that opens more than one stream per minute.
const mostStreams = 10

// leases finds pods that another pod closed before their lease expired. A pod treats a lease that is more than twice as long as its own as
// expired.
func (e *examination) leases(ctx context.Context) error {
	pods, err := view.Pods(ctx, e.store, true)
	if err != nil {
		return err
	}
	for _, p := range pods {
		if p.Closed == nil || *p.Closed != "lapsed" || !p.LeaseUntil.After(*p.ClosedAt) {
			continue
		}
		e.find("pods", Warning, fmt.Sprintf("%s (%s) was declared dead %s before its lease expired", p.Name, p.PodID, text.Round(p.LeaseUntil.Sub(*p.ClosedAt))),
			"set the same TRAPEZE_LEASE_DURATION on all pods, since a pod treats a lease longer than twice its own as expired; or the database's clock was set back")
		break // one finding is enough
	}
	return nil
}

// waits summarizes waiting jobs, for example those in a lane or of a kind.
type waits struct {
	jobs   int
	oldest time.Time // zero if unknown
	now    time.Time // the database's time
}

func (w *waits) add(waitingWork view.WaitingWork, now time.Time) {
	more := waits{jobs: waitingWork.Waiting, now: now}
	if waitingWork.Oldest != nil {
		more.oldest = *waitingWork.Oldest
	}
	w.join(more)
}

// join merges more into w.
func (w *waits) join(more waits) {
	w.jobs, w.now = w.jobs+more.jobs, more.now
	if !more.oldest.IsZero() && (w.oldest.IsZero() || more.oldest.Before(w.oldest)) {
		w.oldest = more.oldest
	}
}

// long reports whether the oldest job has been due for longer than the threshold.
func (w waits) long(overdue time.Duration) bool {
	return !w.oldest.IsZero() && w.now.Sub(w.oldest) > overdue
}

func (w waits) String() string {
	line := text.Count(w.jobs, "job waits", "jobs wait")
	if !w.oldest.IsZero() {
		line += ", the oldest due for " + text.Ago(&w.oldest, w.now)
	}
	return line
}

// lanes finds jobs that no pod runs because no pod has a handler for them or because their lane is closed.
func (e *examination) lanes(ctx context.Context) error {
	work, err := view.ReadWaitingWork(ctx, e.store)
	if err != nil {
		return err
	}
	lanes, err := view.LaneStates(ctx, e.store)
	if err != nil {
		return err
	}
	before := len(e.findings)
	e.kinds(work)
	byLane := map[string]*waits{}
	for _, w := range work {
		if byLane[w.Lane] == nil {
			byLane[w.Lane] = &waits{}
		}
		byLane[w.Lane].add(w, e.now)
	}
	all := waits{}
	for _, g := range lanes {
		w := byLane[g.Name]
		if w == nil {
			w = &waits{}
		}
		all.jobs += w.jobs
		delete(byLane, g.Name)
		e.lane(g, *w)
	}
	e.missing(lanes, byLane)
	if len(e.findings) == before {
		e.find("lanes", Healthy, fmt.Sprintf("%s open, %s due", text.Count(len(lanes), "lane", "lanes"), text.Count(all.jobs, "job", "jobs")), "")
	}
	return nil
}

// missing finds that the lane default does not exist, and jobs in lanes that do not exist. strays holds these jobs.
func (e *examination) missing(lanes []view.LaneState, strays map[string]*waits) {
	if !slices.ContainsFunc(lanes, func(g view.LaneState) bool { return g.Name == job.DefaultLane }) {
		of := waits{}
		if w := strays[job.DefaultLane]; w != nil {
			of = *w
		}
		e.find("lanes", Failing, fmt.Sprintf("the lane default does not exist: its jobs do not start; %s", of),
			"trapeze lane set default; a starting pod also creates it. Compare the other lanes (trapeze lanes) with the audit log")
		delete(strays, job.DefaultLane)
	}
	for _, name := range slices.Sorted(maps.Keys(strays)) {
		e.find("lanes", Warning, fmt.Sprintf("lane %s does not exist: %s", name, strays[name]),
			"trapeze lane set "+text.ShellWord(name)+"; otherwise maintenance moves its jobs to the lanes of their kinds within a minute")
	}
}

// mostKinds is the maximum number of kinds without a handler that are reported in separate findings. All other kinds share one finding,
// because anyone who can submit jobs can invent kinds.
const mostKinds = 5

// kinds finds kinds with waiting jobs that no live pod can run. Kinds that the fleet knows come first.
func (e *examination) kinds(work []view.WaitingWork) {
	type orphan struct {
		kind  string
		known bool
		waits
	}
	of, list := map[string]*orphan{}, []*orphan{}
	for _, w := range work {
		if w.Pods > 0 {
			continue
		}
		if of[w.Kind] == nil {
			of[w.Kind] = &orphan{kind: w.Kind, known: w.Known}
			list = append(list, of[w.Kind])
		}
		of[w.Kind].add(w, e.now)
	}
	slices.SortStableFunc(list, func(a, b *orphan) int {
		switch {
		case a.known && !b.known:
			return -1
		case b.known && !a.known:
			return 1
		}
		return b.jobs - a.jobs
	})
	for _, o := range list[:min(len(list), mostKinds)] {
		e.find("kinds", Failing, fmt.Sprintf("no live pod has a handler of %q: %s", o.kind, o.waits),
			"start a pod that registers it (check TRAPEZE_KINDS); to list the jobs: trapeze jobs --kind "+text.ShellWord(o.kind)+" --state pending")
	}
	if len(list) <= mostKinds {
		return
	}
	var others waits
	for _, o := range list[mostKinds:] {
		others.join(o.waits)
	}
	first := list[mostKinds].kind
	e.find("kinds", Failing, fmt.Sprintf("no live pod has a handler of %s, such as %q: %s", text.Count(len(list)-mostKinds, "other kind", "other kinds"), first, others),
		"start a pod that registers them, or cancel jobs of kinds that no program has; to list the jobs: trapeze jobs --state pending")
}

// lane examines one lane and its waiting jobs.
func (e *examination) lane(g view.LaneState, w waits) {
	if why, do := closedBy(g); why != "" {
		status := Warning
		switch {
		case w.jobs == 0 && (g.Paused || g.Frozen || g.Drained || !g.Enabled):
			return // the lane was closed on purpose, and no jobs are waiting
		case w.long(e.Overdue):
			status = Failing
		}
		e.find("lanes", status, fmt.Sprintf("lane %s %s: %s", g.Name, why, w), do)
		return
	}
	if g.Engine != job.EnginePostgreSQL {
		if !g.Served {
			e.find("lanes", Failing, fmt.Sprintf("no live pod serves %s, the engine of lane %s: %s", g.Engine, g.Name, w),
				"start a pod whose program registers the engine, or move the lane back with trapeze lane set "+text.ShellWord(g.Name)+" --engine postgres")
		}
		return
	}
	if len(g.Kinds) > 0 && g.Pods == 0 {
		e.find("lanes", Warning, fmt.Sprintf("no live pod has a handler for the kinds of lane %s: %s", g.Name, text.Short(strings.Join(g.Kinds, ", "), 60)),
			"start a pod that registers one of these kinds")
	}
	if w.long(e.Overdue) {
		e.find("lanes", Warning, fmt.Sprintf("lane %s: %s", g.Name, w),
			"if trapeze ps shows all slots in use, raise slots or add pods; else see Why does this job not run? in docs/operating.md")
	}
}

// closedBy returns why a lane starts no jobs, and the command that reopens it. Both are empty for an open lane.
func closedBy(g view.LaneState) (why, do string) {
	switch {
	case g.Frozen:
		return "is frozen with the whole queue", "trapeze unfreeze, after the maintenance"
	case g.Paused:
		return "is paused with the whole queue", "trapeze resume"
	case g.NextEngine != "":
		return "is moving to the engine " + g.NextEngine, "nothing: it starts jobs again once its running jobs have ended; see trapeze lane set " + text.ShellWord(g.Name) + " --engine " + text.ShellWord(g.NextEngine)
	case g.Drained:
		return "is drained", "trapeze undrain " + text.ShellWord(g.Name)
	case !g.Enabled:
		return "is disabled", "trapeze lane set " + text.ShellWord(g.Name) + " enabled=true"
	case g.Slots != nil && *g.Slots == 0:
		return "has 0 slots", "trapeze lane set " + text.ShellWord(g.Name) + " slots=4, or another suitable limit"
	case g.SlotsPerPod != nil && *g.SlotsPerPod == 0:
		return "has 0 slots per pod", "trapeze lane set " + text.ShellWord(g.Name) + " slots_per_pod=2, or another suitable limit"
	}
	return "", ""
}

// running finds running jobs whose pod is gone or does not know about them. No handler is working on such jobs.
func (e *examination) running(ctx context.Context) error {
	list, err := view.FindUnknownWork(ctx, e.store)
	if err != nil {
		return err
	}
	for _, w := range list {
		jobs, name := text.Count(w.Jobs, "job is", "jobs are"), w.Pod
		if name == "" {
			name = "a pod without a row"
		}
		if w.Gone {
			e.find("running", Failing, fmt.Sprintf("%s running on %s (%s), which is gone; the first is %d", jobs, name, w.PodID, w.First),
				"start a pod: it recovers them. If a pod is running, find out from its log why recovery fails")
			continue
		}
		e.find("running", Failing, fmt.Sprintf("%s running on %s (%s), which knows of %d; the first is %d",
			jobs, name, w.PodID, w.Known, w.First),
			"wait two minutes: the pod hands back unknown jobs. If the finding remains, check its log and restart it")
	}
	if len(list) == 0 {
		e.find("running", Healthy, "every running job is known to its pod", "")
	}
	return nil
}

// schedules finds schedules that cannot fire as configured, or whose jobs no pod or lane accepts.
func (e *examination) schedules(ctx context.Context) error {
	list, err := view.ReadScheduleHealth(ctx, e.store)
	if err != nil {
		return err
	}
	paused, bad := 0, false
	for _, s := range list {
		if s.Paused {
			paused++
			continue
		}
		if says, do := scheduleIll(s); says != "" {
			bad = true
			e.find("schedules", Failing, "schedule "+s.Name+says, do)
		}
	}
	if !bad {
		e.find("schedules", Healthy, fmt.Sprintf("%s, %d paused, the others fire on time", text.Count(len(list), "schedule", "schedules"), paused), "")
	}
	return nil
}

// scheduleIll returns a schedule's problem and its remedy, or empty strings for a healthy schedule. It reports causes before their effects.
func scheduleIll(s view.ScheduleHealth) (says, do string) {
	name := text.ShellWord(s.Name)
	switch {
	case s.Error != "":
		return " does not fire: " + text.Short(s.Error, 200),
			fmt.Sprintf("see trapeze cron show %s; correct it with trapeze cron set %s …, and try expressions with trapeze cron next", name, name)
	case !s.Placed:
		return fmt.Sprintf(" names the lane %q, which does not exist: its jobs are refused", s.Lane),
			fmt.Sprintf("trapeze lane set %s slots=2, or trapeze cron set %s --lane default", text.ShellWord(s.Lane), name)
	case s.Pods == 0:
		return fmt.Sprintf(": no live pod runs %q, so it does not fire, or its jobs wait", s.Kind),
			fmt.Sprintf("start a pod that registers it (check TRAPEZE_KINDS), or trapeze cron pause %s", name)
	case s.Due > job.MissedAfter.Seconds():
		return fmt.Sprintf(" has been due for %s, and has not fired", text.Seconds(s.Due)),
			"see docs/operating.md, \"A schedule did not fire\", the logs of the pods, and the checks pods and clock"
	}
	if first := passedOver(s); !first.IsZero() {
		return fmt.Sprintf(" fires next at %s and skips the earlier occurrences of its expression, starting at %s: the database's clock was ahead, or next_at was set by hand",
				text.ClockIn(s.Zone, s.Next), text.ClockIn(s.Zone, &first)),
			fmt.Sprintf("trapeze cron pause %s, then trapeze cron resume %s: this plans it from now on", name, name)
	}
	return "", ""
}

// passedOver returns the first future occurrence that a schedule will skip because its next run is planned for more than a minute later. It
// returns the zero time if there is no such occurrence, or if this machine cannot parse the expression or the time zone.
func passedOver(s view.ScheduleHealth) time.Time {
	if s.Next == nil {
		return time.Time{}
	}
	calendar, err := scheduler.Parse(s.Expression, s.Zone, s.Now)
	if err != nil {
		return time.Time{}
	}
	first := calendar.Next(s.Now)
	if first.IsZero() || s.Next.Sub(first) <= time.Minute {
		return time.Time{}
	}
	return first
}

// keys finds limits of keys that have no effect.
func (e *examination) keys(ctx context.Context) error {
	useless, err := view.FindUselessLimits(ctx, e.store)
	for _, l := range useless {
		why := "no pod handles it"
		if l.Scope == job.LaneScope {
			why = "it does not exist"
		}
		e.find("keys", Warning, fmt.Sprintf("%s of %s %s: %s", text.Count(l.Count, "limit has no effect on jobs", "limits have no effect on jobs"), l.Scope, text.Printable(l.Name), why),
			fmt.Sprintf("trapeze limit rm --%s %s --key %s, if the name is wrong or no longer used", l.Scope, text.ShellWord(l.Name), text.ShellWord(l.Key)))
	}
	if err == nil && len(useless) == 0 {
		e.find("keys", Healthy, "no limit of a key is without effect", "")
	}
	return err
}
