package runner

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"sync"

	"github.com/trapeze-run/trapeze/internal/store"
	"github.com/trapeze-run/trapeze/job"
)

// GuestReport is what a handler elsewhere returned.
type GuestReport struct {
	GuestClaim
	Outcome    *Outcome // nil: Done(nil)
	Err        error
	Class      job.ErrorClass // of Err: see [ErrorOf]
	Code       string         // of Err; empty: none
	HandedBack bool           // the worker stops: the job is given back
	Why        string
}

// Reported ends a claim of a remote worker, on whichever pod its report arrives. It returns when the end is committed; duplicate says that
// it was before. Errors: [job.ErrLeaseLost], [job.ErrGone], [ErrGuestClosed], [ErrWrongToken].
func (r *Runner) Reported(ctx context.Context, id, owner string, report GuestReport) (duplicate bool, err error) {
	defer func() { r.countReport(duplicate, err) }()
	g := r.guests.find(id)
	if g == nil || g.opts.Owner != owner {
		row, err := r.guestRow(ctx, id, owner)
		if err != nil {
			return false, err
		}
		if !signed(row.Key, id, report.GuestClaim) {
			return false, fmt.Errorf("report of job %d: %w", report.ID, ErrWrongToken)
		}
		return r.reportedElsewhere(ctx, id, row, report)
	}
	if !signed(g.key, id, report.GuestClaim) {
		return false, fmt.Errorf("report of job %d: %w", report.ID, ErrWrongToken)
	}
	if taken, duplicate, err := g.report(ctx, report); taken {
		return duplicate, err
	}
	return r.reportedElsewhere(ctx, id, store.GuestRow{Key: g.key, Stream: g.stream}, report)
}

// report hands a report to the proxy of its claim, and waits until the end is written. taken is false when there is none here.
func (g *Guest) report(ctx context.Context, report GuestReport) (taken, duplicate bool, err error) {
	key := claimKey{report.ID, report.Fence}
	g.mu.Lock()
	p := g.proxies[key]
	g.mu.Unlock()
	one := g.r.runs.find(report.ID, report.Fence)
	if one == nil {
		return false, false, nil
	}
	lost := one.isLost() || one.settled.Load()
	mine := g.answer(report)
	if p != nil {
		select {
		case p.answers <- mine:
		default: // the same report is being taken in
		}
	}
	select {
	case <-one.ended:
	case <-ctx.Done(): // who asked has gone: it asks again, or has learnt the end by a heartbeat
		return true, false, fmt.Errorf("report of job %d: %w", report.ID, ctx.Err())
	}
	first := p != nil && p.taken.Load() == mine
	if first && !lost && one.wrote.Load() {
		g.remember(key)
		return true, false, nil
	}
	found, err := g.r.front.ClaimOutcome(ctx, one.lease)
	if err != nil {
		return true, false, fmt.Errorf("report of job %d: %w: %w", report.ID, job.ErrOutcomeUnknown, err)
	}
	if found.Held { // not written: somebody else is to be asked
		return true, false, fmt.Errorf("report of job %d: %w", report.ID, job.ErrOutcomeUnknown)
	}
	g.remember(key)
	if !report.is(found) || lost && first {
		return true, false, fmt.Errorf("report of job %d: %w", report.ID, g.r.front.Lost(ctx, one.lease))
	}
	return true, !first, nil
}

func (g *Guest) remember(key claimKey) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.reported.add(key)
}

func (g *Guest) answer(report GuestReport) *answer {
	switch {
	case report.HandedBack:
		why := job.Storable(report.Why, 200)
		if why == "" {
			why = "its worker is shutting down"
		}
		return &answer{err: g.giveBack(why, nil)}
	case report.Err != nil:
		return &answer{err: reported(report.Err, report.Class, report.Code)}
	}
	return &answer{outcome: report.Outcome}
}

// is reports whether a claim came to what the report says.
func (report GuestReport) is(c store.ClaimOutcome) bool {
	o, ended := report.Outcome, c.State != nil && c.ByPod && ours(c.Reason)
	switch {
	case report.HandedBack:
		return c.Pending
	case report.Err != nil:
		return c.Parked && !c.FannedOut || ended && (*c.State == job.Failed || *c.State == job.Cancelled)
	case o != nil && o.later != nil:
		return c.Parked && !c.FannedOut || ended && *c.State == job.Cancelled
	case o != nil && o.fan != nil && c.FannedOut:
		return true
	case !ended:
		return false
	case *c.State == job.Succeeded:
		return o == nil || sameResult(o.result, c.Result)
	}
	return *c.State == job.Cancelled || *c.State == job.Failed && *c.Reason != job.ReasonError
}

// ours reports whether an end may be one that a handler's return led to.
func ours(why *job.Reason) bool {
	switch *why {
	case job.ReasonStopped, job.ReasonCrashed, job.ReasonDeadline:
		return false
	}
	return true
}

func sameResult(reported any, kept json.RawMessage) bool {
	if reported == nil {
		return kept == nil
	}
	raw, err := encode(reported, job.MaxResultBytes)
	var a, b bytes.Buffer
	return err == nil && json.Compact(&a, raw) == nil && json.Compact(&b, kept) == nil && bytes.Equal(a.Bytes(), b.Bytes())
}

// reportedElsewhere ends a claim whose stream another pod serves, or none: by a runner of its own for that one report, so that the end
// and what follows are written as anywhere else.
func (r *Runner) reportedElsewhere(ctx context.Context, id string, row store.GuestRow, report GuestReport) (duplicate bool, err error) {
	lease := job.Lease{JobID: report.ID, Fence: report.Fence, Pod: id}
	held, err := store.Adopt(ctx, r.remoteStore, id, []job.Lease{lease})
	if err != nil {
		return false, r.dbError(err)
	}
	if len(held) == 0 {
		found, err := r.front.ClaimOutcome(ctx, lease)
		if err != nil {
			return false, r.dbError(err)
		}
		if report.is(found) {
			return true, nil
		}
		return false, fmt.Errorf("report of job %d: %w", report.ID, r.front.Lost(ctx, lease))
	}
	kinds, err := r.policies(ctx, id, held)
	if err != nil {
		return false, err
	}
	g, leave := r.visit(id, row, kinds, held)
	defer leave()
	_, duplicate, err = g.report(ctx, report)
	return duplicate, err
}

// policies are what a worker said of its kinds when it opened its latest stream. Of a kind that it no longer runs, and has claims of, it
// said nothing: that is as the pod says.
func (r *Runner) policies(ctx context.Context, id string, held []store.Adopted) (kinds []GuestKind, err error) {
	raw, err := store.GuestPolicies(ctx, r.remoteStore, id)
	if err != nil {
		return nil, r.dbError(err)
	}
	if err := json.Unmarshal(raw, &kinds); err != nil {
		return nil, fmt.Errorf("policies of worker %s: %w", id, err)
	}
	for _, h := range held {
		if !slices.ContainsFunc(kinds, func(k GuestKind) bool { return k.Name == h.Kind }) {
			kinds = append(kinds, GuestKind{Name: h.Kind})
		}
	}
	return kinds, nil
}

// visit makes a guest for claims that are a worker's, of which this pod serves no stream: for what is said of them here. Call leave after.
func (r *Runner) visit(id string, row store.GuestRow, kinds []GuestKind, held []store.Adopted) (g *Guest, leave func()) {
	o := GuestOptions{ID: id, Owner: row.Owner, Kinds: kinds, Slots: len(held), Send: func(Assignment) error { return job.ErrLeaseLost }}
	g = &Guest{host: r, opts: o, stream: row.Stream, key: row.Key, over: make(chan struct{}), proxies: map[claimKey]*proxy{}, stop: func() {}}
	g.newEngine()
	ctx, die := context.WithCancel(context.Background())
	var life sync.WaitGroup
	life.Go(func() { g.r.flusher.run(ctx) })
	g.adopt(held)
	return g, func() {
		g.finish(nil)
		g.settleRest()
		g.r.hands.close()
		die()
		life.Wait()
	}
}
