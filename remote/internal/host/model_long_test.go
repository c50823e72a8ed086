//go:build long

package host_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/internal/engine"
	"github.com/trapeze-run/trapeze/internal/pgtest"
	"github.com/trapeze-run/trapeze/internal/podtest"
	"github.com/trapeze-run/trapeze/job"
	"github.com/trapeze-run/trapeze/remote/internal/host"
	"github.com/trapeze-run/trapeze/runner"
)

func TestRandomRemoteWorkerFaults(t *testing.T) {
	for name, c := range map[string]struct {
		lease   time.Duration
		freezes bool
	}{
		"workers are never frozen":            {10 * time.Second, false},
		"some workers are frozen for a while": {time.Second, true},
	} {
		t.Run(name, func(t *testing.T) { anyFleet(t, c.lease, c.freezes) })
	}
}

func anyFleet(t *testing.T, lease time.Duration, freezes bool) {
	is := is.New(t)
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	goroutines := runtime.NumGoroutine()
	o := runner.Options{LeaseDuration: lease, HeartbeatInterval: 100 * time.Millisecond, PollInterval: 500 * time.Millisecond}
	c := &chaos{t: t, pool: pgtest.Pool(t), dice: rand.New(rand.NewPCG(seed, 1)), ends: map[int64]int{}, kinds: []engine.RemoteKind{
		{Name: "far", MaxAttempts: 3, MaxCrashes: 100, Backoff: &runner.Backoff{Base: 10 * time.Millisecond, Cap: 10 * time.Millisecond}}, {Name: "near"}}}
	pgtest.Exec(t, c.pool, `insert into trapeze.lanes (name, slots) values ('gpu', 3)`)
	c.start(o)
	c.start(o)
	ctx, end := context.WithCancel(t.Context())
	defer end()
	var living sync.WaitGroup
	var workers []*roamer
	for range 4 {
		w := newRoamer(c)
		workers = append(workers, w)
		living.Go(func() { w.live(ctx) })
	}
	kept := time.Now() // when the lane was last seen within its limit
	for until := time.Now().Add(1500 * time.Millisecond); time.Now().Before(until); time.Sleep(time.Millisecond) {
		c.happen(workers, o, freezes)
		if pgtest.QueryOne[int](t, c.pool, `select count(*) from trapeze.live where lane = 'gpu' and state = 'running'`) <= 3 {
			kept = time.Now()
		}
		// The limit may be exceeded briefly: a job that was claimed for a superseded stream but never arrived counts until it is handed
		// back.
		is.True(time.Since(kept) < time.Second)
	}
	c.gone.Store(true)
	_, err := c.pod().Admin("ops").Resume(t.Context())
	is.NoErr(err)
	pgtest.Exec(t, c.pool, `update trapeze.lanes set drained = false`)
	podtest.Quiet(t, c.pool)
	is.Equal(c.wrong, nil)
	podtest.CheckHistory(t, c.pool, c.pod())
	is.Equal(pgtest.QueryOne[int](t, c.pool, `select count(*) from trapeze.done d where d.state = 'succeeded' and d.attempt <> 1 +
		(select count(*) from trapeze.job_events e where e.job = d.id and e.event = 'job.retried')`), 0) // only errors use up attempts
	if !freezes {
		is.Equal(pgtest.QueryOne[int](t, c.pool, `select count(*) from trapeze.done where crashes > 0`), 0) // no crash was counted for any job
	}
	end()
	living.Wait()
	pgtest.Wait(t, "no worker is left", func() bool {
		return pgtest.QueryOne[int](t, c.pool, `select count(*) from trapeze.remote_workers w join trapeze.pods p on p.id = w.pod where p.closed_at is null`) == 0
	})
	pgtest.Wait(t, "no slot is in use", func() bool {
		return pgtest.QueryOne[int](t, c.pool, `select count(*) from trapeze.slot_grants where slots > 0`) == 0
	})
	for _, r := range c.pods {
		is.Equal(podtest.MetricValue(t, r, "trapeze_stuck_handlers"), 0.0)
	}
	for _, stop := range c.stops {
		stop()
	}
	is.Equal(pgtest.QueryOne[int](t, c.pool, `select count(*) from trapeze.slot_grants where slots > 0`), 0)
	is.Equal(pgtest.QueryOne[int](t, c.pool, `select coalesce(sum(granted), 0) from trapeze.lanes where slots is not null`), 0)
	c.pool.Reset()
	pgtest.Wait(t, "no goroutine is left", func() bool { return runtime.NumGoroutine() < goroutines+15 })
}

// chaos is a fleet of pods and remote workers in which failures happen at random.
type chaos struct {
	t     *testing.T
	pool  *pgxpool.Pool
	kinds []engine.RemoteKind

	mu    sync.Mutex
	dice  *rand.Rand
	pods  []*runner.Runner
	stops []func()
	ends  map[int64]int // accepted reports of success, by job
	wrong []string
	ids   []int64
	gone  atomic.Bool
}

func (c *chaos) roll(n int) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.dice.IntN(n)
}

// odds returns true with a probability of 1/n. It always returns false once the chaos has ended.
func (c *chaos) odds(n int) bool { return !c.gone.Load() && c.roll(n) == 0 }

// while returns a timer channel while the chaos lasts, and nil after that.
func (c *chaos) while(d time.Duration) <-chan time.Time {
	if c.gone.Load() {
		return nil
	}
	return time.After(d)
}

func (c *chaos) pod() *runner.Runner {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.pods[c.dice.IntN(len(c.pods))]
}

func (c *chaos) check(ok bool, wrong string, args ...any) {
	if !ok {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.wrong = append(c.wrong, fmt.Sprintf(wrong, args...))
	}
}

func (c *chaos) takes() time.Duration {
	if c.odds(20) {
		return 500 * time.Millisecond // longer than the acknowledgement timeout
	}
	return time.Duration(c.roll(20)) * time.Millisecond
}

func (c *chaos) accepted(a engine.Assignment, report host.Report, duplicate bool) {
	if duplicate || report.Err != nil || report.HandedBack || report.Outcome == nil {
		return
	}
	c.mu.Lock()
	c.ends[a.ID]++
	n := c.ends[a.ID]
	c.mu.Unlock()
	c.check(n == 1, "job %d was ended %d times", a.ID, n)
}

// outcome returns a random report for a task. It sends a snooze report itself, because a snooze does not end the job and can happen several
// times.
func (c *chaos) outcome(t *task) host.Report {
	report := host.Report{Claim: claimOf(t.a)}
	done := encoded(runner.Done(map[string]int64{"fence": t.a.Fence}))
	if t.ctx.Err() != nil {
		report.Err = context.Cause(t.ctx)
		return report
	}
	switch c.roll(14) {
	case 0, 1:
		report.Err = errors.New("bad luck")
	case 2:
		report.Err = job.Permanent(errors.New("worse luck"))
	case 3:
		report.HandedBack = true
	case 4, 5:
		if t.a.Step < 4 {
			report.Outcome = encoded(runner.Then(podtest.RawArgs("far")))
		}
	case 6:
		if t.a.Step < 3 {
			report.Outcome = encoded(runner.FanOut(podtest.RawArgs("far"), podtest.RawArgs("near"), runner.With(podtest.RawArgs("far"), runner.Subject("x"))).Join(podtest.RawArgs("near")))
		}
	case 7:
		if !c.gone.Load() {
			later := host.Report{Claim: report.Claim, Outcome: encoded(runner.Snooze(time.Duration(c.roll(20))*time.Millisecond, "not now"))}
			if _, err := hostOf(c.pod()).Report(context.Background(), t.podID, owner, later); err == nil {
				t.lost.Store(true) // the worker no longer holds the job, which is now snoozed
			}
		}
	}
	if report.Outcome == nil && report.Err == nil && !report.HandedBack {
		report.Outcome = done
	}
	return report
}

// succeeded reports whether a job succeeded. A job that was cancelled concurrently stays cancelled, regardless of the worker's report.
func (c *chaos) succeeded(id int64) bool {
	j, err := c.pod().GetJob(context.Background(), id)
	return err == nil && j.State == job.Succeeded
}

// start adds a pod.
func (c *chaos) start(o runner.Options) {
	r := podtest.New(c.t, c.pool, o, noKinds)
	stop := podtest.Run(c.t, r)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.pods, c.stops = append(c.pods, r), append(c.stops, stop)
}

// replace starts a new pod and then stops the oldest one.
func (c *chaos) replace(o runner.Options) {
	c.start(o)
	c.mu.Lock()
	stop := c.stops[0]
	c.pods, c.stops = c.pods[1:], c.stops[1:]
	c.mu.Unlock()
	stop()
}

// happen triggers a random event in the fleet.
func (c *chaos) happen(workers []*roamer, o runner.Options, freezes bool) {
	ctx, r := c.t.Context(), c.pod()
	some := func() int64 { return c.ids[c.roll(len(c.ids))] }
	switch n := c.roll(100); {
	case n < 60 || len(c.ids) == 0:
		options := []runner.EnqueueOption{runner.AllowUnregistered(), runner.Subject([]string{"", "", "", "", "x", "y"}[c.roll(6)]), runner.Lane([]string{"default", "gpu"}[c.roll(2)])}
		for range 3 {
			c.ids = append(c.ids, podtest.Enqueue(c.t, r, podtest.RawArgs([]string{"far", "near"}[c.roll(2)]), options...))
		}
	case n < 70:
		_, _ = r.Admin("ops").Cancel(ctx, some())
	case n < 77:
		_, _ = r.Admin("ops").ForceCancel(ctx, some())
	case n < 78 && freezes:
		_, _ = r.Admin("ops").Pause(ctx)
	case n < 82:
		_, _ = r.Admin("ops").Resume(ctx)
	case n < 86:
		pgtest.Exec(c.t, c.pool, `update trapeze.lanes set drained = not drained where name = 'gpu'`)
	case n < 88:
		c.replace(o)
	case n < 91 && freezes:
		w := workers[c.roll(len(workers))]
		if w.frozen.TryLock() {
			time.AfterFunc(o.LeaseDuration+500*time.Millisecond, w.frozen.Unlock)
		}
	}
}
