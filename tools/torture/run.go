package torture

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"github.com/trapeze-run/trapeze/tools/torture/history"
)

// These time limits for the parts of a run come on top of its planned duration. They ensure that every run ends, even if its world is
// broken.
const (
	startWithin  = 90 * time.Second // for the first processes to become ready
	healWithin   = 20 * time.Second // for the nemesis and the clients to finish, and again for the server to respond
	stopWithin   = 20 * time.Second // for a process to exit, in addition to the grace period
	exportWithin = 2 * time.Minute
)

// Script defines the actions in a run. Each function returns soon after its context is cancelled.
type Script struct {
	Plan   []history.Act                                      // recorded before the run begins
	Inject func(context.Context, *World, []history.Act) error // injects the faults of the plan
	Work   func(context.Context, *World) error                // submits jobs
	AtRest func(context.Context, *World) error                // runs the tests of the idle fleet before the quiet tail; may be nil
}

// NewScript returns the script for the world's seed. It uses all faults or only the named ones. To replay a plan, replace the script's
// Plan.
func NewScript(w *World, only ...string) Script {
	crowd := NewCrowd(w)
	return Script{
		Plan:   PlanFor(w.Settings.Seed, PlanOptions{For: w.Duration, Pods: len(w.pods), Workers: len(w.workers), Only: only}),
		Inject: func(ctx context.Context, _ *World, plan []history.Act) error { return Inject(ctx, crowd, plan) },
		Work:   func(ctx context.Context, _ *World) error { return crowd.Work(ctx) },
		AtRest: func(ctx context.Context, _ *World) error {
			if err := crowd.EndSchedules(ctx); err != nil {
				return err
			}
			return crowd.AskAtRest(ctx)
		},
	}
}

// Torture runs a script in the world and leaves complete records in the world's folder. It returns an error if the torture itself fails or
// ctx is cancelled. [Judge] judges the records.
func (w *World) Torture(ctx context.Context, s Script) error {
	if err := w.writePlan(s.Plan); err != nil {
		return err
	}
	w.enter("starting pods", 0)
	if err := w.startPods(ctx); err != nil {
		return err
	}
	sampling, stopSampling := context.WithCancel(ctx)
	samples, err := newSampler(w)
	if err != nil {
		stopSampling()
		return err
	}
	var sampler sync.WaitGroup
	sampler.Go(func() { samples.run(sampling) })
	defer sampler.Wait()
	defer stopSampling()

	w.Settings.Began = time.Now()
	w.enter("torture", w.Duration)
	if err := w.act(ctx, s); err != nil {
		return err
	}
	w.enter("healing", healWithin+startWithin)
	if err := w.heal(ctx); err != nil {
		return err
	}
	if s.AtRest != nil {
		if err := s.AtRest(ctx, w); err != nil {
			return err
		}
	}
	w.Settings.QuietFrom = time.Now()
	if w.Settings.Quiescent, err = w.settle(ctx); err != nil {
		return err
	}
	w.enter("stopping pods", w.Settings.Grace+stopWithin)
	w.stopPods(ctx)
	w.enter("exporting", exportWithin)
	if err := w.export(ctx); err != nil {
		return err
	}
	w.Settings.Ended = time.Now()
	stopSampling()
	sampler.Wait()
	if err := w.failure(); err != nil {
		return err
	}
	return w.writeSettings()
}

// startPods starts a process in every place and keeps the places filled. Workers start once the pods are ready to accept them.
func (w *World) startPods(ctx context.Context) error {
	within, cancel := context.WithTimeoutCause(ctx, startWithin, fmt.Errorf("not within %s", startWithin))
	defer cancel()
	if err := startAll(within, w.places()[:len(w.pods)]); err != nil {
		return err
	}
	if err := startAll(within, w.places()[len(w.pods):]); err != nil {
		return err
	}
	var keeping context.Context
	keeping, w.stopKeep = context.WithCancel(context.WithoutCancel(ctx)) // until Close is called
	for _, p := range w.places() {
		w.keeping.Go(func() { p.keep(keeping) })
	}
	return nil
}

func startAll(ctx context.Context, places []*place) error {
	errs := make([]error, len(places))
	var starting sync.WaitGroup
	for i, p := range places {
		starting.Go(func() { errs[i] = p.Start(ctx) })
	}
	starting.Wait()
	return errors.Join(errs...)
}

// act runs the nemesis and the clients until the time is up. If they have not finished by then, act waits a little longer.
func (w *World) act(ctx context.Context, s Script) error {
	acting, cancel := context.WithTimeout(ctx, w.Duration)
	defer cancel()
	ended := make(chan error, 2)
	go func() { ended <- w.part(acting, "nemesis", func() error { return s.Inject(acting, w, s.Plan) }) }()
	go func() { ended <- w.part(acting, "clients", func() error { return s.Work(acting, w) }) }()
	watch := time.NewTicker(sampleEvery)
	defer watch.Stop()
	var late <-chan time.Time
	timeIsUp := acting.Done()
	for left := 2; left > 0 || timeIsUp != nil; {
		select {
		case err := <-ended:
			if left--; err != nil {
				return err
			}
		case <-timeIsUp:
			timeIsUp, late = nil, time.After(healWithin)
			w.enter("waiting for nemesis and clients", healWithin)
		case <-late:
			return fmt.Errorf("nemesis or clients still run %s after the end of their time", healWithin)
		case <-watch.C:
			if err := w.failure(); err != nil {
				return err
			}
		}
	}
	return context.Cause(ctx)
}

// part runs one part of a script. Running out of time is not an error.
func (w *World) part(ctx context.Context, name string, do func() error) error {
	if err := do(); err != nil && ctx.Err() == nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	return nil
}

// heal undoes any damage that the nemesis may have left behind and waits until the server responds and every place has a ready process.
func (w *World) heal(ctx context.Context) error {
	w.thawServer()
	for _, p := range w.pods {
		p.proxy.Pass()
	}
	for _, k := range w.workers {
		k.pass()
	}
	for _, p := range w.places() {
		p.release()
		_ = p.Signal(syscall.SIGCONT) // fails if there is no process
	}
	if err := w.wakeServer(ctx); err != nil {
		return err
	}
	within, cancel := context.WithTimeoutCause(ctx, startWithin, fmt.Errorf("%s have passed since the faults", startWithin))
	defer cancel()
	for _, p := range w.places() {
		for p.Start(within) != nil { // the place's keeper retries, too
			if within.Err() != nil {
				return fmt.Errorf("%s did not become ready: %w", p.name, context.Cause(within))
			}
			pause(within, sampleEvery)
		}
	}
	return nil
}

// wakeServer waits until PostgreSQL responds, and restarts it if it does not.
func (w *World) wakeServer(ctx context.Context) error {
	var err error
	for deadline := time.Now().Add(healWithin); time.Now().Before(deadline) && ctx.Err() == nil; pause(ctx, sampleEvery) {
		asking, cancel := context.WithTimeout(ctx, sampleWithin)
		err = w.Admin.Ping(asking)
		cancel()
		if err == nil {
			return nil
		}
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	w.log.Warn("postgres does not answer and is started again", "err", err)
	if err := w.Server().Restart(ctx, "immediate"); err != nil {
		return err
	}
	return w.Admin.Ping(ctx)
}

// quietSQL counts the unfinished jobs. It also reports whether the fleet is quiet: every unfinished job is then held up by something that
// will not change during the quiet tail, such as a closed queue or lane, a missing handler, or a due time far in the future.
const quietSQL = `
select (select count(*) from trapeze.live), not exists (
	select from trapeze.live l left join trapeze.lanes n on n.name = l.lane
	where l.state = 'running' or n.name is null or not (n.drained or not n.enabled or coalesce(n.slots_per_pod, 1) = 0 or coalesce(n.slots, 1) = 0
		or (select paused from trapeze.queue_state)
		or not exists (select from trapeze.pods p where p.closed_at is null and l.kind = any(p.kinds))))
and not exists (
	select from trapeze.parked where why in ('scheduled', 'retry', 'snooze') and run_after < now() + interval '5 minutes' or why = 'key')
and not exists (select from trapeze.fan_outs where (open = 0) <> ended or fail_fast and failed > 0 and not ended)`

// settle waits until nothing is left to do. Its time limit is long enough for everything that may still happen on its own. To let a slow
// machine work off a backlog, the limit starts over whenever the number of remaining jobs reaches a new minimum, for up to five minutes.
func (w *World) settle(ctx context.Context) (quiet bool, err error) {
	limit := 2*(w.Settings.Lease+w.Settings.Poll) + 30*time.Second
	w.enter("quiet tail", limit)
	began, least := time.Now(), math.MaxInt
	for deadline := began.Add(limit); time.Now().Before(deadline); pause(ctx, sampleEvery) {
		if ctx.Err() != nil {
			return false, context.Cause(ctx)
		}
		if err := w.failure(); err != nil {
			return false, err
		}
		asking, cancel := context.WithTimeout(ctx, sampleWithin)
		left := 0
		err := w.Admin.QueryRow(asking, quietSQL).Scan(&left, &quiet)
		cancel()
		switch {
		case err != nil:
		case quiet:
			return true, nil
		case left < least && time.Since(began) < 5*time.Minute:
			least, deadline = left, time.Now().Add(limit)
		}
	}
	return false, nil
}

// stopPods shuts down every process as an operator would. Workers go first, because they need a running pod to sign off. A process that
// does not exit is killed, which its record shows.
func (w *World) stopPods(ctx context.Context) {
	within, cancel := context.WithTimeout(ctx, w.Settings.Grace+stopWithin)
	defer cancel()
	stopAll(within, w.places()[len(w.pods):])
	stopAll(within, w.places()[:len(w.pods)])
}

func stopAll(ctx context.Context, places []*place) {
	var stopping sync.WaitGroup
	for _, p := range places {
		p.HoldDown()
		_ = p.Signal(syscall.SIGTERM) // fails if there is no process
		stopping.Go(func() {
			if p.WaitExit(ctx) != nil {
				_ = p.Kill()
			}
		})
	}
	stopping.Wait()
}

func (w *World) writePlan(plan []history.Act) error {
	acts, err := history.NewWriter(w.Dir, history.PlanFile)
	if err != nil {
		return err
	}
	for _, act := range plan {
		if err := acts.Write(act); err != nil {
			return errors.Join(err, acts.Close())
		}
	}
	return acts.Close()
}

func (w *World) writeSettings() error {
	text, err := json.MarshalIndent(w.Settings, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(w.Dir, history.SettingsFile), append(text, '\n'), 0o644)
}

// pause waits for d or until ctx is cancelled.
func pause(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}
