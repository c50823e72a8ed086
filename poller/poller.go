// Package poller is the safety net of an engine, for this module only: its names may change in any release. It finds any job that the fast path misses, because a process has failed, a reply was
// lost, or no pod has noticed a commit: usually within one interval. It also claims the pending jobs for free slots. Each engine has one poller.
//
//	interval ± 10 % ───┐
//	a wake-up ─────────┼──▶ Poll, repeated while it finds more ──▶ wait
//	a due time ────────┘      │
//	                          ▼
//	hand back orphans ─▶ recover ─▶ promote ─▶ admit missed ─▶ settle slots ─▶ claim ─▶ [Engine.LaunchClaims]
//
// This file has the poll. Each of the others has one of its parts: timer.go, wake.go, due.go, orphaned_claims.go, recover.go, admit.go,
// slots.go (slot grants and low-water marks), claim.go, and backlog.go (whether a free slot is worth another claim).
package poller

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/trapeze-run/trapeze/internal/fleet"
	"github.com/trapeze-run/trapeze/internal/identity"
	"github.com/trapeze-run/trapeze/internal/routine"
	"github.com/trapeze-run/trapeze/internal/store"
	"github.com/trapeze-run/trapeze/internal/telemetry"
	"github.com/trapeze-run/trapeze/job"
)

// Engine runs the jobs that a poller claims.
type Engine interface {
	// LaunchClaims starts claimed jobs, for which reserved holds the free slots by lane, and counts them down there.
	LaunchClaims(podID string, found store.Claims, reserved map[string]int)
	// FillSlots fills free slots with jobs that were claimed ahead of time.
	FillSlots()
	// AwaitEnds blocks, on a small pod and only for a moment, until the ends in flight have freed their slots.
	AwaitEnds()
	// ReadSettings requests an immediate heartbeat, which reads the lanes.
	ReadSettings()
	// RunsIsolated reports whether an isolated job is running.
	RunsIsolated() bool
	// AddKnown adds the claims that the engine is working on, including claims that a statement in flight may assign to it.
	AddKnown(known map[job.Lease]bool)
}

// Member is implemented by the identity that a poller works for.
type Member interface {
	// Claims returns the claims that the table assigns to the identity. The ok result is false if another process is now responsible for
	// them.
	Claims(ctx context.Context, podID string) (held []store.Held, ok bool, err error)
	// WakePeers wakes the process's other engines and the other pods, because there is work that this engine cannot take immediately.
	WakePeers()
	// Escalate wakes every pod, because there are more jobs than the pods that claim first can take.
	Escalate()
	// MarkLimit returns how long low-water marks may stay valid, and a function that is called when they expire, to wake the engines that
	// share them.
	MarkLimit() (most time.Duration, wake func())
}

// Poller finds the work of one engine. Create one with [New].
type Poller struct {
	*identity.Identity
	Timer  *Timer // calls Poll
	member Member
	engine Engine
	due    dueTimes
	lines  lines // whose next jobs must be admitted

	look      atomic.Bool    // more jobs may have become pending since the latest claim
	news      atomic.Bool    // more urgent jobs than those claimed ahead of time may have arrived
	backlog   backlog        // whether the latest claim left jobs behind
	turns     fleet.Turns    // when this engine claims after a notification
	escalates atomic.Bool    // the next claim wakes all pods if it leaves jobs behind
	renewing  sync.WaitGroup // waits for reads of expired marks
	missedAt  time.Time      // when missed admissions were last searched for

	mu        sync.Mutex // locked during a claim; guards the following fields
	round     round
	roundTrip time.Duration // moving average over the latest claims
	dry       bool          // the latest refill of the jobs claimed ahead of time found fewer jobs than requested
}

// New returns the poller of an engine that works for an identity.
func New(i *identity.Identity, m Member, e Engine) *Poller {
	p := &Poller{Identity: i, member: m, engine: e, lines: lines{some: routine.NewSignal()}}
	p.Timer = NewTimer(p, i.Opts.PollInterval)
	return p
}

// Run polls until ctx ends.
func (p *Poller) Run(ctx context.Context) {
	p.Timer.Run(ctx)
	p.renewing.Wait()
}

// Poll implements [Source]. It hands back orphans, recovers the jobs of lapsed pods, promotes due jobs, admits missed ones, and claims jobs.
func (p *Poller) Poll(ctx context.Context) (more bool) {
	if !p.Lease.Trusted() {
		return false
	}
	p.went(ctx, notHandedBack, p.HandBackOrphans(ctx))
	promote, recover := p.due.take()
	if recover && !p.Lease.MayJudge() {
		p.due.pollAgain(false, true, p.Opts.HeartbeatInterval)
	} else if recover && !p.went(ctx, recoveryFailed, p.recoverClosedPods(ctx)) {
		p.due.pollAgain(false, true, time.Second)
	}
	if promote {
		more = p.promote(ctx)
	}
	p.admitMissed(ctx)
	claimed, err := p.claimDue(ctx, p.look.Swap(false) || promote || recover)
	if !p.went(ctx, claimFailed, err) {
		time.AfterFunc(time.Second, p.Wake)
		return false
	}
	return more || claimed
}

// promote makes jobs pending that have become due, and reports whether more are due.
func (p *Poller) promote(ctx context.Context) (more bool) {
	const most = 500
	pending, waiting, err := p.Store.Promote(ctx, most)
	p.LinesChanged(waiting...)
	if !p.went(ctx, promotionFailed, err) {
		p.due.pollAgain(true, false, time.Second)
	} else if more = len(pending)+len(waiting) >= most; more {
		p.due.pollAgain(true, false, 0)
	}
	if p.announce(pending); len(pending) > 0 {
		p.news.Store(true)
	}
	return more
}

// went counts and logs a statement's error or, without one, that earlier errors are over. It reports whether there was no error.
func (p *Poller) went(ctx context.Context, failure string, err error) bool {
	if err != nil {
		p.Damped.Warn(ctx, failure, telemetry.Err, p.DBError(err))
	} else {
		p.Damped.Over(ctx, failure)
	}
	return err == nil
}

// NextDue implements [Source].
func (p *Poller) NextDue() time.Time { return p.due.nextDue() }

// ApplyBeat applies the times from a heartbeat's response at which a poll may find work.
func (p *Poller) ApplyBeat(b store.Beat) {
	p.due.ApplyBeat(b)
	p.Timer.Nudge()
}

// These messages are logged through [telemetry.Damped].
const (
	notHandedBack   = "could not hand back unknown jobs yet"
	recoveryFailed  = "recovery failed, retrying in a second"
	promotionFailed = "promotion failed, retrying in a second"
	admissionFailed = "admission of jobs with a subject failed, retrying"
	claimFailed     = "claim failed, retrying in a second"
	startsLost      = "could not give back unused starts of a lane's rate"
)
