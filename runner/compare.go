package runner

import (
	"context"
	"math/rand/v2"
	"time"

	"github.com/trapeze-run/trapeze/internal/store"
	"github.com/trapeze-run/trapeze/internal/telemetry"
	"github.com/trapeze-run/trapeze/job"
)

// The claims that a process works on and those that the table gives to it differ after a failover to a server that lacks the latest
// commits, and after a lost reply. After each heartbeat both are compared:
//
//	a handler works on a claim that is missing in the table ── it is cancelled
//	the table has a claim that this process does not know ── orphaned: it is handed back, see doubt.go
//
// Orphaned claims are searched at once after a failed heartbeat or a lost reply. No index of live has the pod in it, so that claims
// are cheap; without such a cause a slow pass finds orphaned claims, one page of live a heartbeat.
const (
	passEvery = time.Minute      // between two passes over live
	passPage  = 5000             // rows of live that are read after one heartbeat
	passAge   = 30 * time.Second // claims that are younger may be on their way here
	knownAge  = 20 * time.Second // claims that were worked on for so long are counted in the pod's row
)

// slowPass is a pass over live. Of one goroutine alone.
type slowPass struct {
	every time.Duration // about so long between the end of one and the begin of the next
	begin time.Time     // of the next one
	after int64         // the last id of the page before; 0: no pass is under way
}

// due reports whether a page is to be read.
func (p *slowPass) due() bool { return p.after > 0 || !time.Now().Before(p.begin) }

// read notes that a page was read.
func (p *slowPass) read(page store.HeldPage) {
	if p.after = page.Last; !page.Full {
		p.rest()
	}
}

// rest plans the next pass, not at the same moment on all pods.
func (p *slowPass) rest() {
	p.after, p.begin = 0, time.Now().Add(p.every*3/4+rand.N(p.every/2+1)) // #nosec G404 -- jitter
}

// compareSoon asks for a comparison.
func (r *engine) compareSoon() {
	r.comparing.Set()
}

// compare compares after each request, until ctx ends. It has a goroutine of its own: a heartbeat never waits for a table of jobs.
func (r *engine) compare(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-r.comparing:
		}
		if err := r.cancelMissing(ctx); err != nil {
			r.log.DebugContext(ctx, "handlers could not be compared with the table, the next heartbeat tries again", telemetry.Err, r.dbError(err))
			continue
		}
		r.member.claimsCompared(ctx)
	}
}

// cancelMissing cancels the handlers whose claims are missing in the table. It asks about claims whose commit was confirmed before, and
// leaves out those whose end may have been written since.
func (r *engine) cancelMissing(ctx context.Context) error {
	boot := r.boot()
	var asked []job.Lease
	r.runs.each(func(one *run) {
		if one.Lease.Pod == boot && one.mustBeHeld() {
			asked = append(asked, one.Lease)
		}
	})
	if len(asked) == 0 {
		return nil
	}
	missing, err := store.MissingClaims(ctx, r.store, boot, asked)
	if err != nil {
		return err
	}
	var lost []*run
	var ids []int64
	for _, m := range missing {
		one := r.runs.find(m.ID, m.Fence)
		switch {
		case one == nil || !one.mustBeHeld():
		case m.Reason == job.ReasonStopped || m.Reason == job.ReasonDeadline:
			r.cancelRun(one, m.Reason) // ended by a command since the heartbeat
		case r.member.claimMissing(one):
		default:
			lost, ids = append(lost, one), append(ids, m.ID)
		}
	}
	if len(lost) == 0 {
		return nil
	}
	gone, err := r.store.Gone(ctx, ids...)
	if err != nil {
		return err
	}
	for _, one := range lost {
		if gone[one.Lease.JobID] {
			one.lose(job.ErrGone)
		} else {
			one.lose(job.ErrLeaseLost)
		}
	}
	r.log.WarnContext(ctx, "handlers cancelled whose claims are missing in the table: the jobs were deleted, or the server has lost its latest commits",
		telemetry.Pod, r.opts.Name, telemetry.JobIDs, ids)
	return nil
}

// mustBeHeld reports whether the table gives the claim to this process unless it was lost: its handler has not returned.
func (one *run) mustBeHeld() bool { return !one.settled.Load() && !one.isLost() }

// letGo lets go of a claim that the worker holds no more: its report was taken in elsewhere, or the claim is lost. The worker learns it
// by its next heartbeat.
func (g *Guest) letGo(key claimKey) {
	for _, p := range g.proxiesThat(func(k claimKey, _ *proxy) bool { return k == key }) {
		p.giveBack(whyReported)
	}
}

// findOrphaned reads the next page of live and raises a doubt where it has claims that neither the pod nor its remote workers know. A
// claim that ended or began while the page was read is known before or after.
func (r *Runner) findOrphaned(ctx context.Context) error {
	boots, of := []string{r.boot()}, map[string]*engine{r.boot(): r.engine}
	r.guests.each(func(g *Guest) {
		boots = append(boots, g.opts.ID)
		of[g.opts.ID] = g.r
	})
	known := map[job.Lease]bool{}
	for _, its := range of {
		its.knows(known)
	}
	page, err := store.ReadHeldPage(ctx, r.store, boots, r.pass.after, passPage, passAge)
	if err != nil {
		return err
	}
	r.pass.read(page)
	for _, its := range of {
		its.knows(known)
	}
	for _, claim := range page.Claims {
		if its := of[claim.Pod]; its != nil && !known[claim] {
			its.doubt.raise()
			its.wake()
		}
	}
	return nil
}

// knows adds the claims that this process works on, or that a statement under way may make its own.
func (r *engine) knows(known map[job.Lease]bool) {
	boot := r.boot()
	for _, id := range r.flights.list() {
		known[job.Lease{JobID: id, Fence: 1, Pod: boot}] = true
	}
	r.runs.each(func(one *run) { known[one.Lease] = true })
}

// knownClaims counts the claims that this process has worked on for long, for doctor, which compares them with the table. Of one
// goroutine alone.
type knownClaims struct {
	boot     string
	since    map[claimKey]time.Time // when a comparison saw the claim first
	reported int                    // as the pod's row has it; -1: nothing
}

// report writes the count into the pod's row when it has changed.
func (k *knownClaims) report(ctx context.Context, r *Runner) {
	if boot := r.boot(); boot != k.boot {
		*k = knownClaims{boot: boot, reported: -1}
	}
	now, seen, n := time.Now(), map[claimKey]time.Time{}, 0
	r.runs.each(func(one *run) {
		first, known := k.since[one.key()]
		if !known {
			first = now
		}
		seen[one.key()] = first
		if one.Lease.Pod == k.boot && now.Sub(first) >= knownAge {
			n++
		}
	})
	if k.since = seen; n == k.reported {
		return
	}
	if err := store.ReportKnownClaims(ctx, r.store, k.boot, n); err != nil {
		r.log.DebugContext(ctx, "the number of claims could not be noted, the next heartbeat tries again", telemetry.Err, r.dbError(err))
		return
	}
	k.reported = n
}
