package host

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"github.com/trapeze-run/trapeze/internal/engine"
	"github.com/trapeze-run/trapeze/internal/store"
	"github.com/trapeze-run/trapeze/internal/work"
	"github.com/trapeze-run/trapeze/job"
)

// Report holds the result of a handler that ran on a remote worker.
type Report struct {
	Claim
	Outcome    *work.Outcome // nil means success without a result
	Err        error
	Class      job.ErrorClass // the class of Err; see [work.ErrorOf]
	Code       string         // the code of Err; empty if there is none
	HandedBack bool           // the worker is stopping and returns the job
	Why        string
}

// Report ends a remote worker's claim. The report may arrive on any pod. Report returns once that end is committed; duplicate is true if it
// had been committed by an earlier report. Report returns [job.ErrLeaseLost] if the claim was lost, [job.ErrGone] if the job was deleted,
// [ErrClosed] if owner has no worker with this ID, and [ErrWrongToken] if the token does not match the claim.
func (h *Host) Report(ctx context.Context, id, owner string, report Report) (duplicate bool, err error) {
	defer func() { h.countReport(duplicate, err) }()
	g := h.find(id)
	if g == nil || g.opts.Owner != owner {
		row, err := h.workerRow(ctx, id, owner)
		if err != nil {
			return false, err
		}
		if !validToken(row.Key, id, report.Claim) {
			return false, fmt.Errorf("report of job %d: %w", report.ID, ErrWrongToken)
		}
		return h.reportElsewhere(ctx, id, row, report)
	}
	if !validToken(g.key, id, report.Claim) {
		return false, fmt.Errorf("report of job %d: %w", report.ID, ErrWrongToken)
	}
	if taken, duplicate, err := g.report(ctx, report); taken {
		return duplicate, err
	}
	return h.reportElsewhere(ctx, id, store.WorkerRow{Key: g.key, Stream: g.stream}, report)
}

// report passes a report to the proxy of its claim and waits until the claim's outcome is written. If this pod does not run the claim,
// taken is false.
func (g *Session) report(ctx context.Context, report Report) (taken, duplicate bool, err error) {
	key := engine.ClaimKey{ID: report.ID, Fence: report.Fence}
	g.mu.Lock()
	p := g.proxies[key]
	g.mu.Unlock()
	run := g.engine.Runs.Find(report.ID, report.Fence)
	if run == nil {
		return false, false, nil
	}
	lost := run.IsLost() || run.Settled.Load()
	mine := g.answer(report)
	if p != nil {
		select {
		case p.answers <- mine:
		default: // the same report is already being processed
		}
	}
	select {
	case <-run.Ended:
	case <-ctx.Done(): // the caller is gone; it will retry or has learned the outcome from a heartbeat
		return true, false, fmt.Errorf("report of job %d: %w", report.ID, ctx.Err())
	}
	first := p != nil && p.taken.Load() == mine
	if first && !lost && run.Wrote.Load() {
		g.remember(key)
		return true, false, nil
	}
	found, err := g.host.pod.Commands.ClaimOutcome(ctx, run.Lease)
	if err != nil {
		return true, false, fmt.Errorf("report of job %d: %w: %w", report.ID, job.ErrOutcomeUnknown, err)
	}
	if found.Held { // the outcome has not been written
		return true, false, fmt.Errorf("report of job %d: %w", report.ID, job.ErrOutcomeUnknown)
	}
	g.remember(key)
	if !report.is(found) || lost && first {
		return true, false, fmt.Errorf("report of job %d: %w", report.ID, g.host.pod.Commands.Lost(ctx, run.Lease))
	}
	return true, !first, nil
}

func (g *Session) remember(key engine.ClaimKey) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.reported.add(key)
}

func (g *Session) answer(report Report) *answer {
	switch {
	case report.HandedBack:
		why := job.Storable(report.Why, 200)
		if why == "" {
			why = "its worker is shutting down"
		}
		return &answer{err: g.giveBack(why, nil)}
	case report.Err != nil:
		return &answer{err: work.ReportedError(report.Err, report.Class, report.Code)}
	}
	return &answer{outcome: report.Outcome}
}

// is reports whether a claim's outcome matches the report.
func (report Report) is(c store.ClaimOutcome) bool {
	o, ended := report.Outcome, c.State != nil && c.ByPod && fromHandler(c.Reason)
	switch {
	case report.HandedBack:
		return c.Pending
	case report.Err != nil:
		return c.Parked && !c.FannedOut || ended && (*c.State == job.Failed || *c.State == job.Cancelled)
	case o != nil && o.Snooze != nil:
		return c.Parked && !c.FannedOut || ended && *c.State == job.Cancelled
	case o != nil && o.Fan != nil && c.FannedOut:
		return true
	case !ended:
		return false
	case *c.State == job.Succeeded:
		return o == nil || sameResult(o.Result, c.Result)
	}
	return *c.State == job.Cancelled || *c.State == job.Failed && *c.Reason != job.ReasonError
}

// fromHandler reports whether a handler's return value can end a job for this reason.
func fromHandler(why *job.Reason) bool {
	switch *why {
	case job.ReasonForceCancelled, job.ReasonCrashed, job.ReasonDeadline:
		return false
	}
	return true
}

// sameResult reports whether a reported result, which is compact JSON, equals the stored one.
func sameResult(reported, kept json.RawMessage) bool {
	if reported == nil || kept == nil {
		return reported == nil && kept == nil
	}
	var b bytes.Buffer
	return json.Compact(&b, kept) == nil && bytes.Equal(reported, b.Bytes())
}

// reportElsewhere ends a claim whose stream is served by another pod or not at all. It creates an engine for this one report, so that the
// outcome and the next steps are written in the usual way.
func (h *Host) reportElsewhere(ctx context.Context, id string, row store.WorkerRow, report Report) (duplicate bool, err error) {
	lease := job.Lease{JobID: report.ID, Fence: report.Fence, Pod: id}
	held, err := store.ClaimsToAdopt(ctx, h.pod.RemoteStore, id, []job.Lease{lease})
	if err != nil {
		return false, h.pod.DBError(err)
	}
	if len(held) == 0 {
		found, err := h.pod.Commands.ClaimOutcome(ctx, lease)
		if err != nil {
			return false, h.pod.DBError(err)
		}
		if report.is(found) {
			return true, nil
		}
		return false, fmt.Errorf("report of job %d: %w", report.ID, h.pod.Commands.Lost(ctx, lease))
	}
	kinds, err := h.policies(ctx, id, held)
	if err != nil {
		return false, err
	}
	g, leave := h.visit(id, row, kinds, held)
	defer leave()
	_, duplicate, err = g.report(ctx, report)
	return duplicate, err
}

// policies returns the options that a worker sent for its kinds when it opened its latest stream. For claims of a kind that the worker no
// longer handles, the pod's options apply.
func (h *Host) policies(ctx context.Context, id string, held []store.Adopted) (kinds []engine.RemoteKind, err error) {
	raw, err := store.WorkerPolicies(ctx, h.pod.RemoteStore, id)
	if err != nil {
		return nil, h.pod.DBError(err)
	}
	if err := json.Unmarshal(raw, &kinds); err != nil {
		return nil, fmt.Errorf("policies of worker %s: %w", id, err)
	}
	for _, h := range held {
		if !slices.ContainsFunc(kinds, func(k engine.RemoteKind) bool { return k.Name == h.Kind }) {
			kinds = append(kinds, engine.RemoteKind{Name: h.Kind})
		}
	}
	return kinds, nil
}

// visit creates a temporary session for the claims of a worker whose stream this pod does not serve. The caller must call leave when done.
func (h *Host) visit(id string, row store.WorkerRow, kinds []engine.RemoteKind, held []store.Adopted) (g *Session, leave func()) {
	o := Options{ID: id, Owner: row.Owner, Kinds: kinds, Slots: len(held), Send: func(engine.Assignment) error { return job.ErrLeaseLost }}
	g = &Session{host: h, opts: o, stream: row.Stream, key: row.Key, over: make(chan struct{}), proxies: map[engine.ClaimKey]*proxy{}, stop: func() {}}
	g.newEngine()
	stop := g.engine.WriteEnds()
	g.adopt(held)
	return g, func() {
		g.finish(nil)
		stop()
	}
}

// verdicts records the claims that a worker lists, and returns a verdict for each of them. A worker can list claims that this pod does not
// know, either because another pod sent them on a newer stream or because this pod has not adopted them yet. For these claims, verdicts
// reads the tables.
func (g *Session) verdicts(ctx context.Context, owner string, listed []Listed, now time.Time) ([]Verdict, error) {
	list := make([]Verdict, len(listed))
	var unknown []int
	for i, l := range listed {
		known := false
		if list[i], known = g.verdict(l, now); !known {
			unknown = append(unknown, i)
		}
	}
	if len(unknown) == 0 {
		g.engine.Resize(g.opts.Slots)
		return list, nil
	}
	all := Beat{Running: make([]Listed, len(listed)), Draining: g.engine.Closing.Load()}
	for i, l := range listed {
		all.Running[i].Claim = l.Claim
	}
	for _, i := range unknown {
		all.Running[i].Progress = listed[i].Progress
	}
	verdicts, err := g.host.heartbeatElsewhere(ctx, g.opts.ID, owner, all)
	if err != nil {
		return nil, err
	}
	leftovers := 0
	for _, i := range unknown {
		if list[i] = verdicts[i]; list[i].Lost {
			leftovers++
		}
	}
	// After a job is lost, its handler may still be running on the worker although this pod no longer counts it. The handler occupies its
	// slot until it returns.
	g.engine.Resize(g.opts.Slots - leftovers)
	return list, nil
}

// verdict records that a claim was listed and returns its verdict. known is false if this pod does not know the claim.
func (g *Session) verdict(l Listed, now time.Time) (v Verdict, known bool) {
	lost := Verdict{ID: l.ID, Fence: l.Fence, Lost: true, Cause: job.ErrLeaseLost}
	if !validToken(g.key, g.opts.ID, l.Claim) {
		return lost, true
	}
	key := engine.ClaimKey{ID: l.ID, Fence: l.Fence}
	run := g.engine.Runs.Find(l.ID, l.Fence)
	g.mu.Lock()
	p, ended, stack := g.proxies[key], g.reported.has(key), g.stacks[key]
	g.mu.Unlock()
	if p != nil {
		g.list(p, now)
	}
	switch {
	case ended:
		return lost, true
	case run == nil:
		return lost, false
	case run.IsLost():
		lost.Cause = context.Cause(run.Ctx)
		return lost, true
	}
	if l.Progress != nil {
		run.Writer.Progress(storableProgress(*l.Progress))
	}
	return Verdict{ID: l.ID, Fence: l.Fence, Cause: context.Cause(run.Ctx), Stack: stack}, true
}

// recent holds the claims that ended most recently. A worker keeps listing a claim until it learns that the claim has ended.
type recent struct{ now, before map[engine.ClaimKey]bool }

// rememberAtMost is the maximum size of each half of recent.
const rememberAtMost = 1000

func (r *recent) add(key engine.ClaimKey) {
	if len(r.now) >= rememberAtMost {
		r.now, r.before = nil, r.now
	}
	if r.now == nil {
		r.now = map[engine.ClaimKey]bool{}
	}
	r.now[key] = true
}

func (r *recent) has(key engine.ClaimKey) bool { return r.now[key] || r.before[key] }
