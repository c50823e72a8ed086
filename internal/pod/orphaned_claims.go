package pod

import (
	"context"
	"math/rand/v2"
	"time"

	"github.com/trapeze-run/trapeze/internal/engine"
	"github.com/trapeze-run/trapeze/internal/store"
	"github.com/trapeze-run/trapeze/internal/telemetry"
	"github.com/trapeze-run/trapeze/job"
)

// After a lost reply, or a failover to a server that lacks the latest commits, the claims that a process is working on can differ from
// those that the tables assign to it. They are compared after each heartbeat:
//
//	a handler works on a claim that is missing in the table ── it is cancelled
//	the table has a claim that this process does not know ── orphaned: it is handed back, see orphaned_claims.go of package poller
//
// After a failed heartbeat or a lost reply, the search for orphaned claims starts immediately. Otherwise, a slow pass finds them, which
// reads one page of the live table after each heartbeat. To keep claims cheap, no index of the live table includes the pod.
const (
	passPage = 5000             // rows of live to read after each heartbeat
	passAge  = 30 * time.Second // younger claims may not have arrived here yet
	knownAge = 20 * time.Second // only claims at least this old are counted in the pod's row
)

// slowPass is a pass over the live table. It is not safe for concurrent use.
type slowPass struct {
	every time.Duration // approximate time from the end of one pass to the start of the next
	begin time.Time     // when the next pass starts
	after int64         // last ID of the previous page; 0 if no pass is in progress
}

// due reports whether a page must be read.
func (p *slowPass) due() bool { return p.after > 0 || !time.Now().Before(p.begin) }

// read records that a page was read.
func (p *slowPass) read(page store.HeldPage) {
	if p.after = page.Last; !page.Full {
		p.rest()
	}
}

// rest schedules the next pass, at a randomized time so that the pods' passes do not coincide.
func (p *slowPass) rest() {
	p.after, p.begin = 0, time.Now().Add(p.every*3/4+rand.N(p.every/2+1)) // #nosec G404 -- jitter
}

// findOrphaned reads the next page of the live table, and notes an unknown outcome if the table assigns a claim to an engine that does not
// know it. Claims may start or end during the read, so those known before or after it count as known.
func (p *Pod) findOrphaned(ctx context.Context) error {
	podIDs, of := []string{p.PodID()}, map[string]*engine.Engine{p.PodID(): p.Engine}
	p.sessions().Each(func(e *engine.Engine) {
		podIDs = append(podIDs, e.PodID())
		of[e.PodID()] = e
	})
	known := map[job.Lease]bool{}
	for _, its := range of {
		its.AddKnown(known)
	}
	page, err := store.ReadHeldPage(ctx, p.Store, podIDs, p.pass.after, passPage, passAge)
	if err != nil {
		return err
	}
	p.pass.read(page)
	for _, its := range of {
		its.AddKnown(known)
	}
	for _, claim := range page.Claims {
		if its := of[claim.Pod]; its != nil && !known[claim] {
			its.NoteUnknownOutcome()
		}
	}
	return nil
}

// knownClaims counts the claims that this process has been working on for some time. Doctor compares the count with the tables. knownClaims
// is not safe for concurrent use.
type knownClaims struct {
	podID    string
	since    map[engine.ClaimKey]time.Time // when a comparison first saw the claim
	reported int                           // the count in the pod's row, or -1 if it has none
}

// report writes the count to the pod's row if it has changed.
func (k *knownClaims) report(ctx context.Context, e *engine.Engine) {
	if podID := e.PodID(); podID != k.podID {
		*k = knownClaims{podID: podID, reported: -1}
	}
	now, seen, n := time.Now(), map[engine.ClaimKey]time.Time{}, 0
	e.Runs.Each(func(run *engine.Run) {
		first, known := k.since[run.Key()]
		if !known {
			first = now
		}
		seen[run.Key()] = first
		if run.Lease.Pod == k.podID && now.Sub(first) >= knownAge {
			n++
		}
	})
	if k.since = seen; n == k.reported {
		return
	}
	if err := store.ReportKnownClaims(ctx, e.Store, k.podID, n); err != nil {
		e.Log.DebugContext(ctx, "could not record the number of claims, retrying with the next heartbeat", telemetry.Err, e.DBError(err))
		return
	}
	k.reported = n
}
