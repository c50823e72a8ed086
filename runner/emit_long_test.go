//go:build long

package runner_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/internal/pgtest"
	"github.com/trapeze-run/trapeze/job"
	"github.com/trapeze-run/trapeze/runner"
)

func TestEventsInTightLoop(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	const n = 10_000
	const emits, notes = "'handler', e.level", "insert into trapeze.job_progress (id, done"
	pool, heard := heardPool(t, pgtest.URL(t), emits, notes)
	took := make(chan time.Duration, 1)
	r := start(t, pool, runner.Options{TraceQueries: true}, map[string]handler{"loop": func(ctx context.Context, j *raw) (*runner.Outcome, error) {
		began := time.Now()
		for i := range n {
			if err := j.Emit(ctx, "tick", "debug", fmt.Sprint(i), map[string]int{"i": i}); err != nil {
				return nil, err
			}
			j.Progress(int64(i+1), n)
			if i%50 == 0 { // 10,000 events and progress updates per second
				if err := pause(ctx, time.Until(began.Add(time.Duration(i)*time.Second/n))); err != nil {
					return nil, err
				}
			}
		}
		took <- time.Since(began)
		return nil, nil
	}})
	id := enqueue(t, r, rawArgs("loop"))
	is.Equal(waitEnded(t, r, id).State, job.Succeeded)
	most := 3 + int(4*(<-took).Seconds()) // four per second, plus a few for the first and last writes
	t.Logf("%d event writes and %d progress writes, at most %d", heard.count(emits), heard.count(notes), most)
	is.True(heard.count(emits) >= 2 && heard.count(emits) <= most)
	is.True(heard.count(notes) >= 2 && heard.count(notes) <= most)
	list := emitted(t, pool, id, "tick")
	is.Equal(len(list), n) // no event is lost
	for i, message := range list {
		if message != fmt.Sprint(i) {
			t.Fatalf("event %d is %s", i, message)
		}
	}
	is.Equal(*get(t, r, id).Progress.Done, int64(n)) // the latest progress was written
	checkHistory(t, pool, r)                         // events are numbered without gaps
}
