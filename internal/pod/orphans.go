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

// The claims that a process works on and those that the table gives to it differ after a failover to a server that lacks the latest
// commits, and after a lost reply. After each heartbeat both are compared:
//
//	a handler works on a claim that is missing in the table ── it is cancelled
//	the table has a claim that this process does not know ── orphaned: it is handed back, see orphans.go of internal/engine
//
// Orphaned claims are searched at once after a failed heartbeat or a lost reply. No index of live has the pod in it, so that claims
// are cheap; without such a cause a slow pass finds orphaned claims, one page of live a heartbeat.
const (
	passPage = 5000             // rows of live that are read after one heartbeat
	passAge  = 30 * time.Second // claims that are younger may be on their way here
	knownAge = 20 * time.Second // claims that were worked on for so long are counted in the pod's row
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

// findOrphaned reads the next page of live and notes an unknown outcome where it has claims that neither the pod nor its remote workers know. A
// claim that ended or began while the page was read is known before or after.
func (p *Pod) findOrphaned(ctx context.Context) error {
	boots, of := []string{p.Boot()}, map[string]*engine.Engine{p.Boot(): p.Engine}
	p.sessions().Each(func(e *engine.Engine) {
		boots = append(boots, e.Boot())
		of[e.Boot()] = e
	})
	known := map[job.Lease]bool{}
	for _, its := range of {
		its.AddKnown(known)
	}
	page, err := store.ReadHeldPage(ctx, p.Store, boots, p.pass.after, passPage, passAge)
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

// knownClaims counts the claims that this process has worked on for long, for doctor, which compares them with the table. Of one
// goroutine alone.
type knownClaims struct {
	boot     string
	since    map[engine.ClaimKey]time.Time // when a comparison saw the claim first
	reported int                           // as the pod's row has it; -1: nothing
}

// report writes the count into the pod's row when it has changed.
func (k *knownClaims) report(ctx context.Context, e *engine.Engine) {
	if boot := e.Boot(); boot != k.boot {
		*k = knownClaims{boot: boot, reported: -1}
	}
	now, seen, n := time.Now(), map[engine.ClaimKey]time.Time{}, 0
	e.Runs.Each(func(one *engine.Run) {
		first, known := k.since[one.Key()]
		if !known {
			first = now
		}
		seen[one.Key()] = first
		if one.Lease.Pod == k.boot && now.Sub(first) >= knownAge {
			n++
		}
	})
	if k.since = seen; n == k.reported {
		return
	}
	if err := store.ReportKnownClaims(ctx, e.Store, k.boot, n); err != nil {
		e.Log.DebugContext(ctx, "could not record the number of claims, retrying with the next heartbeat", telemetry.Err, e.DBError(err))
		return
	}
	k.reported = n
}
