package conformance

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"

	"github.com/jackc/pgx/v5"

	"github.com/trapeze-run/trapeze/internal/pgtest"
	"github.com/trapeze-run/trapeze/internal/podtest"
	"github.com/trapeze-run/trapeze/job"
	"github.com/trapeze-run/trapeze/runner"
)

// observations are the cases about the information that handlers can obtain about their jobs, and that others can obtain about running
// jobs.
var observations = []testCase{
	{name: "a handler knows its job", run: func(w *world) {
		w.handle("a", func(_ context.Context, j *raw) (*runner.Outcome, error) {
			return runner.Done(fmt.Sprintf("%d %s %s %s %d attempt %d of %d, step %d of %d by %s, created %t, claimed %t", j.ID(), j.Kind(), j.Lane(),
				j.Subject(), j.Priority(), j.Attempt(), j.MaxAttempts(), j.Step(), j.PipelineID(), j.SubmittedBy(), !j.CreatedAt().IsZero(),
				!j.ClaimedAt().IsZero())), nil
		}, runner.Retry(3, soon))
		w.start()
		id := w.enqueue(of("a"), runner.Subject("s"), runner.Priority(-7), runner.Submitter("ann"))
		w.Equal(string(w.ended(id).Result), fmt.Sprintf(`"%d a default s -7 attempt 1 of 3, step 0 of %d by ann, created true, claimed true"`, id, id))
	}},
	{name: "a checkpoint survives errors", run: func(w *world) {
		var seen trail
		w.handle("a", func(ctx context.Context, j *raw) (*runner.Outcome, error) {
			var at int
			if _, err := j.LastCheckpoint(&at); err != nil {
				return nil, err
			}
			seen.add("%d", at)
			if err := j.Checkpoint(ctx, at+1); err != nil {
				return nil, err
			}
			if _, err := j.LastCheckpoint(&at); err != nil {
				return nil, err
			}
			seen.add("%d", at)
			if j.Attempt() < 3 {
				return nil, errors.New("once more")
			}
			return runner.Done(at), nil
		}, runner.Retry(3, soon))
		w.start()
		w.Equal(string(w.ended(w.enqueue(of("a"))).Result), "3")
		w.Equal(seen.String(), "0 1 1 2 2 3")
	}},
	{name: "a checkpoint survives a snooze and a retry by an operator", run: func(w *world) {
		w.handle("a", func(ctx context.Context, j *raw) (*runner.Outcome, error) {
			var at int
			if _, err := j.LastCheckpoint(&at); err != nil {
				return nil, err
			}
			if err := j.Checkpoint(ctx, at+1); err != nil {
				return nil, err
			}
			switch at {
			case 0:
				return runner.Snooze(0, "once"), nil
			case 1:
				return nil, errors.New("no")
			}
			return runner.Done(at), nil
		})
		w.start()
		id := w.enqueue(of("a"))
		w.Equal(w.ended(id).State, job.Failed)
		_, err := w.r.Admin("ana").Retry(w.Context(), id, nil)
		w.NoErr(err)
		w.Equal(string(w.inState(id, job.Succeeded).Result), "2")
	}},
	{name: "progress is visible while the job runs", differs: "The progress of a running job is in Temporal, and in PostgreSQL once the job has ended", run: func(w *world) {
		hold, open := podtest.Latch(w.T)
		w.handle("a", func(_ context.Context, j *raw) (*runner.Outcome, error) {
			j.Progress(3, 7)
			j.Message("reading")
			<-hold
			return nil, nil
		})
		w.start()
		id := w.enqueue(of("a"))
		w.wait("the progress is visible", func() bool {
			p := w.progress(w.get(id))
			return p != nil && p.Done != nil && *p.Done == 3 && *p.Total == 7 && podtest.Deref(p.Message) == "reading"
		})
		open()
		p := w.ended(id).Progress
		w.True(p != nil && *p.Done == 3 && *p.Total == 7)
	}},
	{name: "an event is visible while the job runs", differs: "The events of a handler are written with the end of its run", run: func(w *world) {
		hold, open := podtest.Latch(w.T)
		emitted := make(chan error, 1)
		w.handle("a", func(ctx context.Context, j *raw) (*runner.Outcome, error) {
			emitted <- j.Emit(ctx, "page.read", "info", "page 1", nil)
			<-hold
			return nil, nil
		})
		w.start()
		id := w.enqueue(of("a"))
		w.NoErr(receive(w, emitted))
		visible := 1
		if w.temporal() {
			visible = 0
		}
		w.Equal(w.count(id, "page.read"), visible)
		open()
		w.ended(id)
		w.Equal(w.count(id, "page.read"), 1)
	}},
	{name: "a handler writes in the commit that ends its job", differs: "`InTx`, `Write`, `Job.Tx` and `Job.Write` are refused", run: func(w *world) {
		pgtest.Exec(w, w.pool, `create table rows (n int)`)
		w.handle("write", returns(func() *runner.Outcome { return runner.Done(nil).Write(`insert into rows values (1)`) }))
		w.handle("tx", func(ctx context.Context, j *raw) (*runner.Outcome, error) {
			return nil, j.Tx(ctx, func(tx pgx.Tx) error {
				_, err := tx.Exec(ctx, `insert into rows values (1)`)
				return err
			}, nil)
		})
		w.start()
		for n, kind := range []string{"write", "tx"} {
			j := w.ended(w.enqueue(of(kind)))
			rows := pgtest.QueryOne[int](w, w.pool, `select count(*) from rows`)
			if w.temporal() {
				w.Equal(j.State, job.Failed)
				w.True(strings.Contains(podtest.Message(j), "idempotently")) // the error contains advice
				w.Equal(rows, 0)
				continue
			}
			w.Equal(j.State, job.Succeeded)
			w.Equal(rows, n+1)
		}
	}},
	{name: "a checkpoint of a mebibyte fits beside arguments of that size", differs: "Arguments, checkpoint and result have at most 1.5 MB each run", run: func(w *world) {
		large := strings.Repeat("x", 1<<20-2)
		w.handle("a", func(ctx context.Context, j *raw) (*runner.Outcome, error) {
			if err := j.Checkpoint(ctx, large); err != nil {
				return nil, err
			}
			if j.Attempt() == 1 {
				return nil, errors.New("once")
			}
			return nil, nil
		}, runner.Retry(2, soon))
		w.start()
		j := w.ended(w.enqueue(of("a", `"`+large+`"`)))
		if w.temporal() {
			w.Equal(j.State, job.Failed)
			w.True(strings.Contains(podtest.Message(j), "pass a reference")) // the error contains advice
			return
		}
		w.Equal(j.State, job.Succeeded)
	}},
	{name: "the events of a handler are in its job's history, in order", run: func(w *world) {
		w.handle("a", func(ctx context.Context, j *raw) (*runner.Outcome, error) {
			for n := range 5 {
				if err := j.Emit(ctx, "page.read", "info", fmt.Sprint("page ", n), map[string]int{"n": n}); err != nil {
					return nil, err
				}
			}
			return nil, nil
		})
		w.start()
		id := w.enqueue(of("a"))
		w.ended(id)
		events, err := w.r.Admin("").Events(w.Context(), id, 0, 100)
		w.NoErr(err)
		n := 0
		for _, e := range events {
			if e.Event == "page.read" {
				var fields struct{ N int }
				w.NoErr(json.Unmarshal(e.Fields, &fields))
				w.True(fields.N == n && podtest.Deref(e.Message) == fmt.Sprint("page ", n))
				n++
			}
		}
		w.Equal(n, 5)
		w.True(events[len(events)-1].To.Terminal()) // no event follows the end
	}},
	{name: "fences rise with each run", run: func(w *world) {
		var fences []int64
		w.handle("a", func(_ context.Context, j *raw) (*runner.Outcome, error) {
			fences = append(fences, j.Fence())
			if len(fences)%3 == 1 {
				return runner.Snooze(0, "again"), nil
			}
			return nil, errors.New("no")
		}, runner.Retry(2, soon))
		w.start()
		id := w.enqueue(of("a"))
		w.Equal(w.ended(id).State, job.Failed)
		_, err := w.r.Admin("ana").Retry(w.Context(), id, nil)
		w.NoErr(err)
		w.wait("it has failed again", func() bool { j := w.get(id); return j.State == job.Failed && j.Epoch == 2 })
		w.Equal(len(fences), 6)
		for i := range fences[1:] {
			w.True(fences[i+1] > fences[i])
		}
	}},
	{name: "a write through an old claim is rejected", run: func(w *world) {
		old := make(chan *raw, 2)
		w.handle("a", func(_ context.Context, j *raw) (*runner.Outcome, error) {
			if old <- j; j.Attempt() == 1 {
				return nil, errors.New("once")
			}
			return nil, nil
		}, runner.Retry(2, soon))
		w.start()
		id := w.enqueue(of("a"))
		w.ended(id)
		for range 2 {
			j := receive(w, old)
			w.True(errors.Is(j.Checkpoint(w.Context(), "late"), job.ErrLeaseLost))
			w.True(errors.Is(j.Emit(w.Context(), "late", "", "", nil), job.ErrLeaseLost))
		}
		w.Equal(w.count(id, "late"), 0)
	}},
	{name: "the hook for ends is called once for each job", run: func(w *world) {
		ended := make(chan job.End, 10)
		w.o = runner.Options{OnEnd: func(_ context.Context, e job.End) { ended <- e }}
		w.handle("a", nothing)
		w.handle("fails", fails(job.Code("E", errors.New("no"))), runner.Retry(2, soon))
		stop := w.start()
		ok, failed := w.enqueue(of("a")), w.enqueue(of("fails"))
		got := map[int64]job.End{}
		for range 2 {
			e := receive(w, ended)
			got[e.ID] = e
		}
		w.Equal(got[ok].State, job.Succeeded)
		e := got[failed]
		w.True(e.State == job.Failed && e.Attempt == 2 && e.Error == "no" && e.ErrorCode == "E" && e.Reason == job.ReasonAttemptsExhausted)
		stop()
		w.Equal(len(ended), 0)
	}},
	{name: "the hook for retries is called for each failed attempt", run: func(w *world) {
		retried := make(chan job.End, 10)
		w.o = runner.Options{OnRetry: func(_ context.Context, e job.End) { retried <- e }}
		w.handle("a", fails(errors.New("no")), runner.Retry(3, soon))
		stop := w.start()
		w.ended(w.enqueue(of("a")))
		stop()
		w.Equal(len(retried), 2)
		e := receive(w, retried)
		w.True(e.Attempt == 1 && e.State == job.Pending && e.Error == "no")
	}},
	{name: "middleware wraps each run", run: func(w *world) {
		var around atomic.Int64
		w.o = runner.Options{Middleware: []runner.Middleware{
			func(ctx context.Context, _ *raw, next func(context.Context) (*runner.Outcome, error)) (*runner.Outcome, error) {
				around.Add(1)
				return next(context.WithValue(ctx, key{}, "inherited"))
			},
		}}
		w.handle("a", func(ctx context.Context, j *raw) (*runner.Outcome, error) {
			if j.Attempt() == 1 {
				return nil, errors.New("once")
			}
			return runner.Done(ctx.Value(key{})), nil
		}, runner.Retry(2, soon))
		w.start()
		w.Equal(string(w.ended(w.enqueue(of("a"))).Result), `"inherited"`)
		w.Equal(around.Load(), int64(2))
	}},
}

type key struct{}

// progress returns the progress of a running job.
func (w *world) progress(j job.JobRow) *job.Progress {
	w.Helper()
	if !w.temporal() {
		return j.Progress
	}
	w.Equal(j.Progress, nil)
	return progressIn(w, j)
}
