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

// The process that frees a subject's guard without giving it to another job, parks a job because its subject is taken, or makes a running job pending again
// admits the subject's next job. It does so in separate statements after its commit, because two such transactions at the same moment do not
// see each other. If the process fails in between, a poll of any pod finds the job.

// subjects holds the subjects whose next jobs this process must admit.
type subjects struct {
	running atomic.Bool // AdmitUntil is running
	denied  atomic.Bool // the database role may submit jobs but not admit them, so the polls of the pods do
	some    routine.Signal

	mu   sync.Mutex
	keys map[store.Key]struct{}
}

// SubjectsChanged notes that the guards of subjects are free, that jobs wait for their subjects, or that jobs that hold the guards are pending again. It
// ignores empty subjects. In a program that runs no jobs, and may exit at any time, it admits the next jobs before it returns.
func (p *Poller) SubjectsChanged(keys ...store.Key) {
	keys = slices.DeleteFunc(slices.Clone(keys), func(k store.Key) bool { return k.Subject == "" })
	if len(keys) == 0 || p.subjects.denied.Load() {
		return
	}
	p.subjects.add(keys...)
	if !p.subjects.running.Load() {
		ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
		defer cancel()
		_ = p.Admit(ctx)
	}
}

// SubjectChanged is like SubjectsChanged, for one subject.
func (p *Poller) SubjectChanged(kind, subject string) {
	if subject != "" {
		p.SubjectsChanged(store.Key{Kind: kind, Subject: subject})
	}
}

func (s *subjects) add(keys ...store.Key) {
	s.mu.Lock()
	if s.keys == nil {
		s.keys = map[store.Key]struct{}{}
	}
	for _, k := range keys {
		s.keys[k] = struct{}{}
	}
	s.mu.Unlock()
	s.some.Set()
}

// Ended wakes the engines that can run the job to which an end has given the guard of a subject. If there is none, it notes that the guard is free. After a
// lost reply, it does both, because the end may have given the guard away.
func (p *Poller) Ended(e store.Ended, kind, subject string) {
	if e.Heir != nil {
		p.Admitted([]store.AdmittedJob{*e.Heir})
		return
	}
	if p.SubjectChanged(kind, subject); (e.EndedBefore || e.ReplyLost) && subject != "" {
		p.WakeAll()
	}
}

// AdmitUntil admits the jobs of noted subjects until ctx ends.
func (p *Poller) AdmitUntil(ctx context.Context) {
	p.subjects.running.Store(true)
	defer p.subjects.running.Store(false)
	for {
		select {
		case <-ctx.Done():
			return
		case <-p.subjects.some:
		}
		for backoff := routine.NewBackoff(); p.Admit(ctx) != nil && backoff.Wait(ctx); {
		}
	}
}

// Admit admits the jobs of all noted subjects. After an error, it notes them again.
func (p *Poller) Admit(ctx context.Context) error {
	p.subjects.mu.Lock()
	keys := slices.Collect(maps.Keys(p.subjects.keys))
	p.subjects.keys = nil
	p.subjects.mu.Unlock()
	if len(keys) == 0 {
		return nil
	}
	err := failpoint.Hit(failpoint.Admit)
	if err == nil {
		var found []store.AdmittedJob
		found, err = p.Store.AdmitNext(ctx, keys...)
		p.Admitted(found)
	}
	if store.Denied(err) != "" && !p.subjects.running.Load() {
		p.subjects.denied.Store(true)
		return nil
	}
	if err != nil {
		p.subjects.add(keys...)
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
	if time.Since(p.missedAt) < p.Opts.PollEvery*9/10 {
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

// announce wakes the other engines if this one cannot claim all the jobs that have just become pending. If it can, but other jobs take the slots
// first, its next claim leaves jobs behind, and then wakes all pods.
func (p *Poller) announce(jobs []store.AdmittedJob) {
	if len(jobs) == 0 {
		return
	}
	elsewhere, n := p.Closing.Load() || !p.Lease.Trusted() || p.engine.RunsIsolated(), map[string]int{}
	for _, j := range jobs {
		p.Marks.Admitted(j)
		n[j.Lane]++
		elsewhere = elsewhere || !p.Handled[j.Kind]
		p.Late.Add(j.Lane, j.Priority, j.ReadyAt)
	}
	if elsewhere || !p.Lanes.Free(n) {
		p.WakePeers()
	} else {
		p.escalates.Store(true)
	}
}
