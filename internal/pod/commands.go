package pod

import (
	"context"
	"time"

	"github.com/trapeze-run/trapeze/internal/engine"
	"github.com/trapeze-run/trapeze/internal/routine"
	"github.com/trapeze-run/trapeze/internal/store/admin"
	"github.com/trapeze-run/trapeze/internal/telemetry"
	"github.com/trapeze-run/trapeze/job"
)

// Once an operator's command has been committed, the fleet must apply it. The functions below apply it on this pod, settle the affected
// fan-outs, and wait until the other pods have applied or answered it.

// Follow makes this pod's engines, including those of its sessions, apply a command immediately instead of waiting for a notification, so
// that later submissions through this pod see the command's effect. This also helps a pod that is still registering and may have read its
// settings before the command changed them.
func (p *Pod) Follow(ctx context.Context) {
	if !p.runs.Load() {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, followWithin)
	defer cancel()
	now := time.Now()
	follow := func(e *engine.Engine) { e.Following.AppliedSince(ctx, now, e.ReadSettings) }
	follow(p.Engine)
	p.sessions().Each(follow)
}

// followWithin limits how long a command waits for this pod's own heartbeat.
const followWithin = time.Second

// SettleAfter settles all unsettled fan-outs after a command, which attrs describe in the log. After a failure, the next heartbeat retries.
func (p *Pod) SettleAfter(ctx context.Context, attrs ...any) {
	if err := p.SettleFanOuts(ctx); err != nil {
		p.Log.WarnContext(ctx, "fan-outs not settled yet", append(attrs, telemetry.Err, p.DBError(err))...)
	}
}

// idlePollInterval is the minimum interval between a command's checks of the fleet.
const idlePollInterval = 50 * time.Millisecond

// AwaitQuiet polls a scope that was closed to new jobs, until no job is running there and no pod can start one, or atMost has passed.
func (p *Pod) AwaitQuiet(ctx context.Context, atMost time.Duration, of admin.Scope) (q job.DrainResult, err error) {
	heard := admin.Heard{}
	q.TimedOut, err = p.PollFleet(ctx, atMost, func() (done, unheard bool, err error) {
		running, leases, err := admin.Running(ctx, p.Commands, of)
		if err != nil {
			return false, false, p.DBError(err)
		}
		all := heard.Record(leases) == 0
		q.Running, q.Quiet = running, running == 0 && all
		return q.Quiet, !all, nil
	})
	return q, err
}

// PollFleet calls check repeatedly until check is done or atMost has passed, and reports whether it timed out. If atMost is not positive,
// it calls check once. If check reports unheard, some pods have not applied the command yet, and PollFleet makes them send a heartbeat.
func (p *Pod) PollFleet(ctx context.Context, atMost time.Duration, check func() (done, unheard bool, err error)) (timedOut bool, err error) {
	for began := time.Now(); ; {
		asked := time.Now()
		done, unheard, err := check()
		left := atMost - time.Since(began)
		if err != nil || done || atMost <= 0 || left <= 0 {
			return err == nil && !done && atMost > 0, err
		}
		if unheard && !p.NotificationsDisabled() {
			_ = p.Commands.NotifySettings(ctx, p.Commands.Pool()) // best effort: makes the pods send a heartbeat now
		}
		// Counting a large backlog can be slow, so spend at most a tenth of the time on it.
		if !routine.Sleep(ctx, min(max(idlePollInterval, 10*time.Since(asked)), left)) {
			return false, ctx.Err()
		}
	}
}

// answerPollInterval is the interval at which a pod's answer is polled. answerWithin is the minimum time that a pod is given to answer.
const (
	answerPollInterval = 50 * time.Millisecond
	answerWithin       = 5 * time.Second
)

// AwaitAnswer waits for a pod's answer to a request, and then removes the request. If the claim has ended, there is no answer.
func (p *Pod) AwaitAnswer(ctx context.Context, request admin.Asked) (answer admin.Answer, err error) {
	p.Follow(ctx)
	defer func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), answerWithin)
		defer cancel()
		_ = admin.RemoveRequest(ctx, p.Commands, request.ID) // best effort; otherwise maintenance removes the request
	}()
	for began := time.Now(); ; {
		if answer, err = admin.ReadAnswer(ctx, p.Commands, request.ID); err != nil || answer.At != nil || !answer.Held {
			return answer, p.DBError(err)
		}
		if time.Since(began) > max(answerWithin, 2*p.Opts.HeartbeatInterval) {
			return answer, job.ErrNoAnswer
		}
		if !routine.Sleep(ctx, answerPollInterval) {
			return answer, ctx.Err()
		}
	}
}
