package store_test

import (
	"maps"
	"slices"

	"pgregory.net/rapid"

	"github.com/trapeze-run/trapeze/internal/store"
	"github.com/trapeze-run/trapeze/job"
)

// step is a kind of step in a random history. do draws the operations that the step runs. Kinds with a higher weight occur more often.
type step struct {
	name   string
	weight int
	do     func(*bench, *rapid.T) []operation
}

var steps = []step{
	{"join", 2, (*bench).drawJoin}, {"enqueue", 3, (*bench).drawEnqueue}, {"enqueue running", 4, (*bench).drawBirth},
	{"enqueue unique", 2, (*bench).drawUnique}, {"claim", 10, (*bench).drawClaim}, {"enqueue in transaction", 2, (*bench).drawEnqueueIn},
	{"admit", 4, (*bench).drawAdmit}, {"yield", 2, (*bench).drawYield}, {"admit missed", 2, (*bench).drawMissed},
	{"finish", 2, (*bench).drawFinish}, {"finish with child", 3, (*bench).drawChain}, {"fail", 1, (*bench).drawFail},
	{"retry", 4, (*bench).drawPark}, {"hand back", 4, (*bench).drawHandBack}, {"progress", 1, (*bench).drawProgress},
	{"emit", 1, (*bench).drawEmit}, {"checkpoint", 2, (*bench).drawCheckpoint}, {"stale writes", 2, (*bench).drawStale},
	{"cancel", 3, (*bench).drawCancel}, {"stop", 1, (*bench).drawStop}, {"nice", 2, (*bench).drawNice},
	{"operator retry", 3, (*bench).drawOperatorRetry}, {"heartbeat", 2, (*bench).drawBeat},
	{"lapse", 3, (*bench).drawLapse}, {"recover", 4, (*bench).drawRecover}, {"leave", 1, (*bench).drawLeave},
	{"come due", 3, (*bench).drawDue}, {"promote", 3, (*bench).drawPromote}, {"lane change", 1, (*bench).drawLane},
	{"pause", 1, (*bench).drawPause}, {"age", 1, (*bench).drawAge}, {"forget", 1, (*bench).drawForget},
	{"prune pods", 1, (*bench).drawPrune},
}

// take draws a step, runs it and returns its name.
func (b *bench) take(t *rapid.T) string {
	var pot []step
	for _, s := range steps {
		pot = append(pot, slices.Repeat([]step{s}, s.weight)...)
	}
	s := draw(t, "step", pot...)
	for _, v := range s.do(b, t) {
		b.try(v)
	}
	return s.name
}

// evenly draws a number from 0 to n-1 with a roughly uniform distribution. rapid's own generators favor small numbers.
func evenly(t *rapid.T, label string, n int) int {
	return rapid.Custom(func(t *rapid.T) int {
		sum := 0
		for range 10 {
			sum *= 2
			if rapid.Bool().Draw(t, "bit") {
				sum++
			}
		}
		return sum % n
	}).Draw(t, label)
}

func draw[T any](t *rapid.T, label string, from ...T) T { return from[evenly(t, label, len(from))] }

// seldom returns true for one call in n on average.
func seldom(t *rapid.T, label string, n int) bool { return evenly(t, label, n) == n-1 }

// drawSome draws about half of a list's elements, but no more than most.
func drawSome[T any](t *rapid.T, label string, most int, from []T) (list []T) {
	for _, one := range from {
		if len(list) < most && seldom(t, label, 2) {
			list = append(list, one)
		}
	}
	return list
}

func (b *bench) drawJoin(*rapid.T) []operation {
	if len(b.openPods()) >= 4 {
		return nil
	}
	return []operation{b.join()}
}

func (b *bench) openPods() (podIDs []string) {
	for _, podID := range slices.Sorted(maps.Keys(b.m.pods)) {
		if b.m.open(podID) {
			podIDs = append(podIDs, podID)
		}
	}
	return podIDs
}

// drawPod draws a pod, usually an open one. Occasionally it draws a pod that is closed or was never registered.
func (b *bench) drawPod(t *rapid.T) string {
	podIDs := b.openPods()
	if len(podIDs) == 0 || seldom(t, "closed pod", 10) {
		return bootOf(evenly(t, "any pod", b.podIDs+1))
	}
	return draw(t, "pod", podIDs...)
}

func (b *bench) drawJobs(t *rapid.T, most int, change func(*store.NewJob)) []store.NewJob {
	list := make([]store.NewJob, 1+evenly(t, "jobs more", most))
	for i := range list {
		n := b.job()
		n.Kind, n.Lane = draw(t, "kind", "k", "k", "other"), draw(t, "lane", "default", "default", "side")
		n.Subject, n.Priority = draw(t, "subject", "", "s", "t"), draw(t, "priority", 10, 5, 20)
		n.Ordered = seldom(t, "ordered", 3)
		n.MaxCrashes = draw(t, "max crashes", nil, ptr(1), ptr(2), ptr(5))
		n.DelayMillis = draw(t, "delay", int64(0), 0, 0, 3_600_000)
		change(&n)
		n.Ordered = n.Ordered && n.Subject != ""
		list[i] = n
	}
	return list
}

func (b *bench) drawEnqueue(t *rapid.T) []operation {
	return []operation{enqueues(bootOf(0), b.drawJobs(t, 3, plain))}
}

func starts(n *store.NewJob) { n.Starts = true }

func (b *bench) drawBirth(t *rapid.T) []operation {
	return []operation{enqueues(b.drawPod(t), b.drawJobs(t, 3, starts))}
}

func (b *bench) drawUnique(t *rapid.T) []operation {
	key, while := draw(t, "key", "x", "y"), draw(t, "while", "pending", "active")
	return []operation{enqueuesUnique(b.drawJobs(t, 1, func(n *store.NewJob) { n.UniqueKey, n.UniqueWhile = &key, &while })[0])}
}

// drawClaim draws a claim by a pod, for some kinds, in the lanes that were open at the pod's last heartbeat.
func (b *bench) drawClaim(t *rapid.T) []operation {
	podID := b.drawPod(t)
	var wants []store.Want
	for _, lane := range []string{"default", "side"} {
		w := store.Want{Lane: lane, N: evenly(t, lane, 5)}
		for _, l := range b.beats[podID] {
			if l.Name == lane && (!l.Enabled || l.Drained) {
				w.N = 0
			} else if l.Name == lane && l.SlotsPerPod != nil {
				running := len(b.m.pick(func(j *modelJob) bool { return j.runs() && j.pod == podID && j.Lane == lane }))
				w.N = min(w.N, max(0, *l.SlotsPerPod-running))
			}
		}
		wants = append(wants, w)
	}
	kinds := draw(t, "kinds", []string{"k", "other"}, []string{"k", "other"}, []string{"k"}, []string{"foreign"})
	return []operation{claims(podID, wants, kinds, !seldom(t, "none isolated", 3))}
}

func drawKeys(t *rapid.T) []store.Line {
	return draw(t, "keys", []store.Line{{Kind: "k", Subject: "s"}}, []store.Line{{Kind: "k", Subject: "t"}, {Kind: "k", Subject: "s"}}, []store.Line{{Kind: "other", Subject: "s"}, {Kind: "k", Subject: "s"}, {Kind: "k", Subject: "nobody"}, {Kind: "other", Subject: "t"}})
}

func (b *bench) drawAdmit(t *rapid.T) []operation { return []operation{admits(drawKeys(t)...)} }
func (b *bench) drawYield(t *rapid.T) []operation { return []operation{yields(drawKeys(t)...)} }
func (b *bench) drawMissed(*rapid.T) []operation  { return []operation{admitsMissed()} }

func (b *bench) drawEnqueueIn(t *rapid.T) []operation {
	return []operation{enqueuesIn(b.drawJobs(t, 3, plain))}
}

// drawLease draws a lease. It is usually valid, but sometimes it belongs to a former owner or never existed.
func (b *bench) drawLease(t *rapid.T) job.Lease {
	how := evenly(t, "whose lease", 10)
	if running := b.m.pick((*modelJob).runs); len(running) > 0 && how < 7 {
		return draw(t, "job", running...).lease()
	}
	if len(b.given) == 0 {
		return job.Lease{JobID: 1, Fence: 1, Pod: bootOf(1)}
	}
	l := draw(t, "former lease", b.given...)
	switch how {
	case 8:
		l.Pod = bootOf(evenly(t, "other pod", b.podIDs+1))
	case 9:
		l.Fence += int64(evenly(t, "other fence", 3) - 1)
	}
	return l
}

// drawLeases draws several leases of one pod, each for a different job.
func (b *bench) drawLeases(t *rapid.T, most int) []job.Lease {
	list := []job.Lease{b.drawLease(t)}
	for _, l := range drawSome(t, "with another", most-1, b.given) {
		if l.Pod == list[0].Pod && !slices.ContainsFunc(list, func(o job.Lease) bool { return o.JobID == l.JobID }) {
			list = append(list, l)
		}
	}
	return list
}

func (b *bench) drawCancel(t *rapid.T) []operation { return []operation{cancels(b.drawAny(t), false)} }
func (b *bench) drawStop(t *rapid.T) []operation   { return []operation{cancels(b.drawAny(t), true)} }

func (b *bench) drawNice(t *rapid.T) []operation {
	return []operation{nices(b.drawAny(t), draw(t, "priority", 10, 5, 20, -100, 100))}
}

// drawOperatorRetry draws a job to retry, usually one that failed or was cancelled.
func (b *bench) drawOperatorRetry(t *rapid.T) []operation {
	again := b.m.pick(func(j *modelJob) bool { return j.state == job.Failed || j.state == job.Cancelled })
	if len(again) > 0 && !seldom(t, "any job", 5) {
		return []operation{retriesAgain(draw(t, "job", again...).ID)}
	}
	return []operation{retriesAgain(b.drawAny(t))}
}

// drawAny draws the id of a job in any state, often that of a running job, and occasionally that of a job that never existed.
func (b *bench) drawAny(t *rapid.T) int64 {
	if running := b.m.pick((*modelJob).runs); len(running) > 0 && seldom(t, "a running job", 2) {
		return draw(t, "job", running...).ID
	}
	if open := b.m.pick(func(j *modelJob) bool { return !j.done() }); len(open) > 0 && !seldom(t, "any job", 5) {
		return draw(t, "job", open...).ID
	}
	return 1 + int64(evenly(t, "id", int(b.jobs)+1))
}

func (b *bench) drawDue(t *rapid.T) (list []operation) {
	for _, j := range drawSome(t, "comes due", 2, b.m.pick((*modelJob).parked)) {
		list = append(list, comesDue(j.ID))
	}
	return list
}

func (b *bench) drawPromote(t *rapid.T) []operation {
	return []operation{promotes(draw(t, "limit", 100, 1, 2))}
}

func (b *bench) drawAge(t *rapid.T) []operation {
	var ids []int64
	for _, j := range drawSome(t, "ages", 5, b.m.pick((*modelJob).done)) {
		ids = append(ids, j.ID)
	}
	if len(ids) == 0 {
		return nil
	}
	return []operation{ages(ids...)}
}

func (b *bench) drawForget(t *rapid.T) (list []operation) {
	for _, state := range drawSome(t, "forgets", 3, []job.State{job.Succeeded, job.Failed, job.Cancelled}) {
		list = append(list, forgets(state))
	}
	if seldom(t, "forgets events", 3) {
		list = append(list, forgetsEvents())
	}
	return list
}

func (b *bench) drawPrune(*rapid.T) []operation { return []operation{prunesPods()} }
