package engine

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/trapeze-run/trapeze/internal/failpoint"
	"github.com/trapeze-run/trapeze/internal/routine"
	"github.com/trapeze-run/trapeze/internal/store"
	"github.com/trapeze-run/trapeze/internal/telemetry"
)

// admitter admits the next job of each subject whose guard this process has freed without giving it to another job, or for which it has parked one. It does so in a statement
// of its own, after the commit that freed the guard or parked the job: two such transactions at the same moment do not see each other. If
// the process fails in between, the poll of any pod finds the job.
type admitter struct {
	*Identity
	running atomic.Bool
	denied  atomic.Bool // the database role may submit jobs but not admit them, so the polls of the pods do
	some    routine.Signal

	mu   sync.Mutex
	keys map[store.Key]bool // the value is set if a job was parked, which may have to precede a pending one
}

// freed notes that the guard of a subject is free, and parked that a job waits for its subject. They do nothing for a job without a subject. In a
// program that runs no jobs, and may exit at any time, they admit the next job before they return.
func (a *admitter) freed(kind, subject string)  { a.note(kind, subject, false) }
func (a *admitter) parked(kind, subject string) { a.note(kind, subject, true) }

func (a *admitter) note(kind, subject string, parked bool) {
	if subject == "" || a.denied.Load() {
		return
	}
	a.add(store.Key{Kind: kind, Subject: subject}, parked)
	if !a.running.Load() {
		ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
		defer cancel()
		_ = a.admit(ctx)
	}
}

func (a *admitter) add(k store.Key, parked bool) {
	a.mu.Lock()
	if a.keys == nil {
		a.keys = map[store.Key]bool{}
	}
	a.keys[k] = a.keys[k] || parked
	a.mu.Unlock()
	a.some.Set()
}

// run admits jobs until ctx ends.
func (a *admitter) run(ctx context.Context) {
	a.running.Store(true)
	defer a.running.Store(false)
	for {
		select {
		case <-ctx.Done():
			return
		case <-a.some:
		}
		for backoff := routine.NewBackoff(); a.admit(ctx) != nil && backoff.Wait(ctx); {
		}
	}
}

// admit admits the jobs of all noted subjects. After an error, it notes them again.
func (a *admitter) admit(ctx context.Context) error {
	a.mu.Lock()
	keys := a.keys
	a.keys = nil
	a.mu.Unlock()
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
		found, err = a.Store.AdmitNext(ctx, all, parked)
		a.admitted(found)
	}
	if store.Denied(err) != "" && !a.running.Load() {
		a.denied.Store(true)
		return nil
	}
	if err != nil {
		for k, was := range keys {
			a.add(k, was)
		}
		if ctx.Err() == nil { // otherwise, the pod is stopping, and admits the jobs at the end
			a.Damped.Warn(ctx, admissionFailed, telemetry.Err, a.DBError(err))
		}
		return err
	}
	a.Damped.Over(ctx, admissionFailed)
	return nil
}

// admitted wakes the engines that can run jobs that have just been admitted.
func (i *Identity) admitted(jobs []store.AdmittedJob) {
	elsewhere := false
	for _, j := range jobs {
		i.Marks.Admitted(j)
		elsewhere = elsewhere || !i.Lanes.Free(j.Lane)
	}
	if elsewhere || i.Closing.Load() {
		i.WakeAll()
	} else if len(jobs) > 0 {
		i.Wake()
	}
}
