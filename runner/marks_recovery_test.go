package runner

import (
	"context"
	"log/slog"
	"testing"
	"time"

	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/internal/pgtest"
	"github.com/trapeze-run/trapeze/internal/store"
	"github.com/trapeze-run/trapeze/job"
)

// A recovered job precedes the jobs that a mark was read for. Neither the mark of the pod that recovers it nor those of other pods may hide it.
func TestRecoveryBehindLowWaterMark(t *testing.T) {
	t.Parallel()
	pod := func(t *testing.T, url, kind, direct string, beat time.Duration) *Runner {
		r, err := New(pgtest.Connect(t, url), Options{HeartbeatInterval: beat, LeaseDuration: 5 * time.Minute, PollInterval: time.Hour, DirectURL: direct,
			Logger: slog.New(slog.DiscardHandler)})
		if err != nil {
			t.Fatal(err)
		}
		HandleRaw(r, kind, func(context.Context, *Job[Raw]) (*Outcome, error) { return nil, nil })
		ctx, cancel := context.WithCancel(context.Background())
		stopped := make(chan struct{})
		go func() { defer close(stopped); _ = r.Run(ctx) }()
		t.Cleanup(func() { cancel(); <-stopped; r.Close() })
		pgtest.Wait(t, "the runner is ready", func() bool { ready, _ := r.Ready(); return ready })
		return r
	}
	for name, recovers := range map[string]func(t *testing.T, url string) *Runner{
		"same pod": func(t *testing.T, url string) *Runner { return pod(t, url, "k", "off", 50*time.Millisecond) }, // without its own notification
		"other pod": func(t *testing.T, url string) *Runner {
			pod(t, url, "other", "", 50*time.Millisecond)
			return pod(t, url, "k", "", time.Minute) // it does not recover jobs before its second heartbeat
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			is := is.New(t)
			url := pgtest.URL(t)
			r := recovers(t, url)
			future := map[string][]store.Mark{job.DefaultLane: {{Rank: -job.DefaultPriority, Since: time.Now().Add(time.Hour)}}}
			r.pod.Marks.Apply(future, nil, time.Hour, time.Hour, r.pod.Wake)
			made, err := r.Enqueue(t.Context(), Raw{Name: "dead"}, AllowUnregistered())
			is.NoErr(err)
			pool := pgtest.Connect(t, url)
			const dead = `'00000000-0000-4000-8000-000000000001'`
			pgtest.Exec(t, pool, `update trapeze.jobs set kind = 'k'`)
			pgtest.Exec(t, pool, `update trapeze.live set state = 'running', kind = 'k', fence = 1, attempt = 1, claimed_at = now(), started_at = now(), pod = `+dead)
			pgtest.Exec(t, pool, `insert into trapeze.pods (id, name, version, kinds, slots, limits, lease_until)
				select `+dead+`, 'dead', version, kinds, slots, limits, now() - interval '1 second' from trapeze.pods limit 1`)
			pgtest.WaitFor(t, 20*time.Second, "the job has ended", func() bool {
				j, err := r.GetJob(t.Context(), made.ID)
				return err == nil && j.State == job.Succeeded
			})
		})
	}
}
