package poller

import (
	"context"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/trapeze-run/trapeze/internal/failpoint"
	"github.com/trapeze-run/trapeze/internal/routine"
	"github.com/trapeze-run/trapeze/internal/store"
	"github.com/trapeze-run/trapeze/internal/telemetry"
)

// The process that frees a subject's guard or a key's place without giving it to another job, parks a job because they are taken, or makes a running job
// pending again admits the next job. It does so in separate statements after its commit, because two such transactions at the same moment do not
// see each other. If the process fails in between, a poll of any pod finds the job.

// lines holds the lines whose next jobs this process must admit.
type lines struct {
	running atomic.Bool // AdmitUntil is running
	denied  atomic.Bool // the database role may submit jobs but not admit them, so the polls of the pods do
	some    routine.Signal

	mu    sync.Mutex
	noted map[store.Line]struct{}
}

// LinesChanged notes that guards or places are free, that jobs wait for them, or that jobs that hold guards are pending again. In a program that runs no
// jobs, and may exit at any time, it admits the next jobs before it returns.
func (p *Poller) LinesChanged(changed ...store.Line) {
	if len(changed) == 0 || p.lines.denied.Load() {
		return
	}
	p.lines.add(changed...)
	if !p.lines.running.Load() {
		ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
		defer cancel()
		_ = p.Admit(ctx)
	}
}

func (l *lines) add(changed ...store.Line) {
	l.mu.Lock()
	if l.noted == nil {
		l.noted = map[store.Line]struct{}{}
	}
	for _, line := range changed {
		l.noted[line] = struct{}{}
	}
	l.mu.Unlock()
	l.some.Set()
}

// Ended wakes the engines that can run the job to which an end has given the guard of a subject, and notes the lines of the job that has ended. After a
// lost reply, the end may have given the guard away, so it wakes all.
func (p *Poller) Ended(e store.Ended, kind, subject, key string) {
	if e.Heir != nil {
		p.Admitted([]store.AdmittedJob{*e.Heir})
		subject = ""
	}
	if p.LinesChanged(store.Lines(kind, subject, key)...); (e.EndedBefore || e.ReplyLost) && subject != "" {
		p.WakeAll()
	}
}

// AdmitUntil admits the jobs of noted lines until ctx ends.
func (p *Poller) AdmitUntil(ctx context.Context) {
	p.lines.running.Store(true)
	defer p.lines.running.Store(false)
	for {
		select {
		case <-ctx.Done():
			return
		case <-p.lines.some:
		}
		for backoff := routine.NewBackoff(); p.Admit(ctx) != nil && backoff.Wait(ctx); {
		}
	}
}

// Admit admits the jobs of all noted lines. After an error, it notes them again.
func (p *Poller) Admit(ctx context.Context) error {
	p.lines.mu.Lock()
	noted := slices.Collect(maps.Keys(p.lines.noted))
	p.lines.noted = nil
	p.lines.mu.Unlock()
	if len(noted) == 0 {
		return nil
	}
	err := failpoint.Hit(failpoint.Admit)
	for page := range slices.Chunk(noted, 1000) {
		var found []store.AdmittedJob
		if err == nil {
			found, err = p.Store.AdmitNext(ctx, page...)
			p.Admitted(found)
		}
	}
	if store.Denied(err) != "" && !p.lines.running.Load() {
		p.lines.denied.Store(true)
		return nil
	}
	if err != nil {
		p.lines.add(noted...)
		if ctx.Err() == nil { // otherwise, the pod is stopping, and admits the jobs at the end
			p.Damped.Warn(ctx, admissionFailed, telemetry.Err, p.DBError(err))
		}
		return err
	}
	p.Damped.Over(ctx, admissionFailed)
	return nil
}

// admitMissed admits, once per poll interval, jobs that a process should have admitted but has not, because it has failed or has lost its
// connection.
func (p *Poller) admitMissed(ctx context.Context) {
	if time.Since(p.missedAt) < p.Opts.PollInterval*9/10 {
		return
	}
	p.missedAt = time.Now()
	if failpoint.Hit(failpoint.AdmitMissed) != nil {
		return
	}
	missed, err := p.Store.AdmitMissed(ctx)
	if err != nil {
		p.Damped.Warn(ctx, admissionFailed, telemetry.Err, p.DBError(err))
		return
	}
	if len(missed) > 0 {
		p.Metrics.Missed.Add(float64(len(missed)))
		p.Admitted(missed)
	}
}

// Admitted wakes the engines that can run jobs that have just been admitted.
func (p *Poller) Admitted(jobs []store.AdmittedJob) {
	if p.announce(jobs); len(jobs) > 0 {
		p.Wake()
	}
}

// announce makes all pods read the lanes' settings if a lane of the jobs that have just become pending is new to this one. It wakes the other engines if
// this one cannot claim all the jobs. If it can, but other jobs take the slots first, its next claim leaves jobs behind, and then wakes all pods.
func (p *Poller) announce(jobs []store.AdmittedJob) {
	if len(jobs) == 0 {
		return
	}
	elsewhere, made, n := p.Closing.Load() || !p.Lease.Trusted() || p.engine.RunsIsolated(), false, map[string]int{}
	for _, j := range jobs {
		p.Marks.Admitted(j)
		if n[j.Lane]++; n[j.Lane] == 1 {
			_, known := p.Lanes.Lookup(j.Kind, j.Lane)
			made = made || !known
		}
		elsewhere = elsewhere || !p.Handled[j.Kind]
		p.Late.Add(j.Lane, j.Priority, j.ReadyAt)
	}
	if made {
		p.engine.ReadSettings()
		ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
		_ = p.Store.NotifySettings(ctx, p.Store.Pool()) // best effort: the other pods learn of the lanes from their next heartbeat
		cancel()
	}
	if elsewhere || !p.Lanes.Free(n) {
		p.WakePeers()
	} else {
		p.escalates.Store(true)
	}
}
