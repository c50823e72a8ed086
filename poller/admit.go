package poller

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/trapeze-run/trapeze/internal/failpoint"
	"github.com/trapeze-run/trapeze/internal/routine"
	"github.com/trapeze-run/trapeze/internal/store"
	"github.com/trapeze-run/trapeze/internal/telemetry"
	"github.com/trapeze-run/trapeze/job"
)

// The process that frees a subject's guard without giving it to another job, or parks a job because its subject is taken, admits the subject's next job. It does so in a
// separate statement after its commit, because two such transactions at the same moment do not see each other. If the process fails in
// between, a poll of any pod finds the job.

// subjects holds the subjects whose next jobs this process must admit.
type subjects struct {
	running atomic.Bool // AdmitUntil is running
	denied  atomic.Bool // the database role may submit jobs but not admit them, so the polls of the pods do
	some    routine.Signal

	mu   sync.Mutex
	keys map[store.Key]bool // the value is set if a job was parked, which may have to precede a pending one
}

// SubjectFreed notes that the guard of a subject is free, and SubjectTaken that a job waits for its subject. They do nothing for a job
// without a subject. In a program that runs no jobs, and may exit at any time, they admit the next job before they return.
func (p *Poller) SubjectFreed(kind, subject string) {
	p.noteSubjects(false, store.Key{Kind: kind, Subject: subject})
}
func (p *Poller) SubjectTaken(kind, subject string) {
	p.noteSubjects(true, store.Key{Kind: kind, Subject: subject})
}

// SubjectsFreed and SubjectsTaken do the same for the subjects of many jobs.
func (p *Poller) SubjectsFreed(of []job.End)   { p.noteSubjects(false, keysOf(of)...) }
func (p *Poller) SubjectsTaken(of []store.Key) { p.noteSubjects(true, of...) }

func keysOf(ends []job.End) (keys []store.Key) {
	for _, e := range ends {
		keys = append(keys, store.Key{Kind: e.Kind, Subject: e.Subject})
	}
	return keys
}

func (p *Poller) noteSubjects(parked bool, keys ...store.Key) {
	if p.subjects.denied.Load() {
		return
	}
	some := false
	for _, k := range keys {
		if k.Subject != "" {
			some = true
			p.subjects.add(k, parked)
		}
	}
	if some && !p.subjects.running.Load() {
		ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
		defer cancel()
		_ = p.Admit(ctx)
	}
}

func (s *subjects) add(k store.Key, parked bool) {
	s.mu.Lock()
	if s.keys == nil {
		s.keys = map[store.Key]bool{}
	}
	s.keys[k] = s.keys[k] || parked
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
	if p.SubjectFreed(kind, subject); e.Found && subject != "" {
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
	keys := p.subjects.keys
	p.subjects.keys = nil
	p.subjects.mu.Unlock()
	var all, parked []store.Key
	for k, was := range keys {
		if all = append(all, k); was {
			parked = append(parked, k)
		}
	}
	if len(all) == 0 {
		return nil
	}
	err := failpoint.Hit(failpoint.Admit)
	if err == nil {
		var found []store.AdmittedJob
		found, err = p.Store.AdmitNext(ctx, all, parked)
		p.Admitted(found)
	}
	if store.Denied(err) != "" && !p.subjects.running.Load() {
		p.subjects.denied.Store(true)
		return nil
	}
	if err != nil {
		for k, was := range keys {
			p.subjects.add(k, was)
		}
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
	elsewhere, n := p.Closing.Load(), map[string]int{}
	for _, j := range jobs {
		p.Marks.Admitted(j)
		n[j.Lane]++
		elsewhere = elsewhere || !p.Handled[j.Kind]
	}
	if elsewhere || !p.Lanes.Free(n) {
		for _, j := range jobs {
			p.Late.Add(j.Lane, j.Priority, j.ReadyAt)
		}
		p.WakePeers()
	} else {
		p.escalates.Store(true)
	}
}
