package runner_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/internal/pgtest"
	"github.com/trapeze-run/trapeze/job"
	"github.com/trapeze-run/trapeze/runner"
)

// parcel is a job that is handled in batches. Do selects its outcome.
type parcel struct {
	N  int
	Do string
}

func (parcel) Kind() string { return "parcel" }

type (
	parcels = []*runner.Job[parcel]
	results = []runner.BatchResult
)

// postman is a batch function that records its calls.
type postman struct {
	mu    sync.Mutex
	calls []parcels
	do    func(ctx context.Context, jobs parcels) results // nil returns the zero value for each job
}

func (p *postman) handle(ctx context.Context, jobs parcels) results {
	p.mu.Lock()
	p.calls = append(p.calls, slices.Clone(jobs))
	p.mu.Unlock()
	if p.do != nil {
		return p.do(ctx, jobs)
	}
	return make(results, len(jobs))
}

// sizes returns the numbers of jobs in the calls, in ascending order.
func (p *postman) sizes() (list []int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, jobs := range p.calls {
		list = append(list, len(jobs))
	}
	slices.Sort(list)
	return list
}

// startBatches runs a pod with ten slots that calls the postman for the given number of jobs, and for fewer only if the options set BatchWait.
func startBatches(t *testing.T, pool *pgxpool.Pool, p *postman, size int, o runner.Options, options ...runner.HandleOption) (r *runner.Runner, stop func()) {
	t.Helper()
	o.Slots = 10
	r = newRunner(t, pool, o, map[string]handler{"next": succeed})
	runner.HandleBatch(r, p.handle, append([]runner.HandleOption{runner.BatchSize(size), runner.BatchWait(time.Hour)}, options...)...)
	return r, run(t, r)
}

// sendParcels submits one parcel for each text.
func sendParcels(t *testing.T, r *runner.Runner, do ...string) []int64 {
	t.Helper()
	var list []job.Args
	for n, text := range do {
		list = append(list, parcel{n, text})
	}
	ids, err := r.EnqueueMany(t.Context(), list)
	if err != nil {
		t.Fatal(err)
	}
	return ids
}

func TestFullBatch(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	pool := pgtest.Pool(t)
	var p postman
	r, _ := startBatches(t, pool, &p, 3, runner.Options{})
	for _, id := range sendParcels(t, r, make([]string, 6)...) {
		j := waitEnded(t, r, id)
		is.Equal(j.State, job.Succeeded)
		is.Equal(j.Fence, int64(1))
	}
	is.Equal(p.sizes(), []int{3, 3})
	checkHistory(t, pool, r)
}

func TestBatchWait(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	var p postman
	r, _ := startBatches(t, pgtest.Pool(t), &p, 100, runner.Options{}, runner.BatchWait(20*time.Millisecond))
	for _, id := range sendParcels(t, r, "", "") {
		is.Equal(waitEnded(t, r, id).State, job.Succeeded)
	}
	is.True(len(p.sizes()) <= 2)
}

func TestBatchesOfDifferentKeys(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	var p postman
	r, _ := startBatches(t, pgtest.Pool(t), &p, 2, runner.Options{})
	var ids []int64
	for range 2 {
		for _, key := range []string{"a", "", "b"} {
			ids = append(ids, enqueue(t, r, parcel{}, runner.Key(key)))
		}
	}
	for _, id := range ids {
		is.Equal(waitEnded(t, r, id).State, job.Succeeded)
	}
	is.Equal(p.sizes(), []int{2, 2, 2})
	for _, jobs := range p.calls {
		is.Equal(jobs[0].Key(), jobs[1].Key())
	}
}

// Each job of a batch has its own result, error, retry, next step, writes, events and checkpoint. The function may reorder the jobs.
func TestOutcomesInBatch(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	pool := pgtest.Pool(t)
	exec(t, pool, `create table rows (job bigint)`)
	p := postman{do: func(ctx context.Context, jobs parcels) (list results) {
		slices.SortFunc(jobs, func(a, b *runner.Job[parcel]) int { return b.Args.N - a.Args.N })
		var all sync.WaitGroup
		for _, j := range jobs {
			all.Go(func() { // a job's methods can be called concurrently
				j.Progress(int64(j.Args.N), 10)
				if err := j.Emit(j.Context(), "sorted", "", "parcel "+j.Args.Do, nil); err != nil {
					t.Error(err)
				}
				if err := j.Write(j.Context(), j.Args.N, batchOfRows(j.ID())); err != nil {
					t.Error(err)
				}
			})
			var r runner.BatchResult
			switch j.Args.Do {
			case "fail":
				r.Err = runner.Permanent(errors.New("no such street"))
			case "retry":
				if j.Attempt() == 1 {
					r.Err = errors.New("not at home")
				}
			case "next":
				r.Outcome = runner.Then(rawArgs("next")).Result(j.Args.N)
			case "snooze":
				if j.Snoozes() == 0 {
					r.Outcome = runner.Snooze(0, "closed")
				}
			case "write":
				r.Outcome = runner.Done(j.Args.N).Write(`insert into rows values ($1)`, j.ID())
			case "in tx":
				r.Outcome = runner.Done(nil).InTx(func(ctx context.Context, tx pgx.Tx) error {
					_, err := tx.Exec(ctx, `insert into rows values ($1)`, j.ID())
					return err
				})
			case "unstorable":
				r.Outcome = runner.Done(func() {})
			}
			list = append(list, r)
		}
		all.Wait()
		return list
	}}
	do := []string{"", "fail", "retry", "next", "snooze", "write", "in tx", "unstorable"}
	r := newRunner(t, pool, runner.Options{Slots: 10}, map[string]handler{"next": succeed})
	runner.HandleBatch(r, p.handle, runner.BatchSize(len(do)), runner.BatchWait(200*time.Millisecond), runner.Retry(3, soon))
	run(t, r)
	rows := map[string]int{"retry": 2, "snooze": 2, "write": 2, "in tx": 2}
	for n, id := range sendParcels(t, r, do...) {
		j := waitEnded(t, r, id)
		want := job.Succeeded
		if do[n] == "fail" || do[n] == "unstorable" {
			want = job.Failed
		}
		is.Equal(j.State, want) // the outcome of this job, not of another one
		is.Equal(queryOne[int](t, pool, `select count(*) from rows where job = $1`, id), max(rows[do[n]], 1))
		is.Equal(*j.Progress.Done, int64(n))
		is.Equal(queryOne[string](t, pool, `select distinct message from trapeze.job_event where job = $1 and event = 'sorted'`, id), "parcel "+do[n])
		switch do[n] {
		case "next":
			is.Equal(string(j.Result), "3")
			is.Equal(waitPipeline(t, pool, id), "succeeded")
			is.Equal(queryOne[int](t, pool, `select count(*) from trapeze.jobs where pipeline_id = $1`, id), 2)
		case "write":
			is.Equal(string(j.Result), "5")
		case "retry":
			is.Equal(j.Attempt, 2)
		case "fail":
			is.Equal(message(j), "no such street")
		default:
			is.Equal(j.Attempt, 1)
		}
	}
	is.Equal(slices.Max(p.sizes()), len(do))
	checkHistory(t, pool, r)
}

func batchOfRows(id int64) *pgx.Batch {
	var b pgx.Batch
	b.Queue(`insert into rows values ($1)`, id)
	return &b
}

// A call that panics, exits or returns the wrong number of results is repeated for each job alone. Only the jobs fail whose second call goes
// wrong as well, with the error that a single handler's job would have.
func TestBatchCallGoesWrong(t *testing.T) {
	t.Parallel()
	for says, wrong := range someOf(map[string]func(jobs parcels) results{
		"panic: out of cheese":                           func(parcels) results { panic("out of cheese") },
		"exited its goroutine":                           func(parcels) results { runtime.Goexit(); return nil },
		"the batch handler returned 0 results for":       func(parcels) results { return nil },
		"the batch handler returned 4 results for 1 job": func(parcels) results { return make(results, 4) },
	}, "panic: out of cheese", "the batch handler returned 4 results for 1 job") {
		t.Run(says, func(t *testing.T) {
			t.Parallel()
			is := is.New(t)
			pool := pgtest.Pool(t)
			p := postman{}
			p.do = func(_ context.Context, jobs parcels) results {
				for _, j := range jobs {
					if j.Args.Do == "wrong" {
						return wrong(jobs)
					}
				}
				return make(results, len(jobs))
			}
			log, said := debugging()
			r, _ := startBatches(t, pool, &p, 3, runner.Options{Logger: log})
			for n, id := range sendParcels(t, r, "", "wrong", "") {
				j := waitEnded(t, r, id)
				is.Equal(j.Attempt, 1)
				is.Equal(j.State == job.Failed, n == 1)
				if n == 1 {
					is.True(strings.Contains(message(j), says))
					is.Equal(*j.ErrorClass == job.ClassPanic, !strings.Contains(says, "results"))
				}
			}
			is.Equal(p.sizes(), []int{1, 1, 1, 3})
			is.Equal(said.Count("call of a batch went wrong"), 1)
			checkHistory(t, pool, r)
		})
	}
}

// A job that is cancelled while it waits leaves its batch immediately. The others are called without it.
func TestCancelBeforeBatchCall(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	pool := pgtest.Pool(t)
	var p postman
	r, _ := startBatches(t, pool, &p, 2, runner.Options{})
	first := enqueueStarted(t, r, parcel{})
	_, err := r.Admin("ada").Cancel(t.Context(), first)
	is.NoErr(err)
	is.Equal(waitEnded(t, r, first).State, job.Cancelled)
	for _, id := range sendParcels(t, r, "", "") {
		is.Equal(waitEnded(t, r, id).State, job.Succeeded)
	}
	is.Equal(p.sizes(), []int{2})
}

// A job that is cancelled, deleted or timed out during the call does not interrupt the others. The context of the call ends with the last
// job's.
func TestCancelDuringBatchCall(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	pool := pgtest.Pool(t)
	called, ended, causes := make(chan parcels, 1), make(chan struct{}), make(chan error, 1)
	var returned atomic.Int32
	counts := func(ctx context.Context, _ *raw, next func(context.Context) (*runner.Outcome, error)) (*runner.Outcome, error) {
		defer returned.Add(1)
		return next(ctx)
	}
	p := postman{do: func(ctx context.Context, jobs parcels) results {
		called <- jobs
		if jobs[0].Args.Do == "all" {
			<-ctx.Done()
			causes <- context.Cause(ctx)
		} else {
			<-ended
			causes <- ctx.Err()
			if returned.Load() > 0 {
				t.Error("the handler of a job returned before the call")
			}
		}
		return make(results, len(jobs))
	}}
	r, _ := startBatches(t, pool, &p, 3, runner.Options{Middleware: []runner.Middleware{counts}})
	ids := sendParcels(t, r, "", "", "")
	jobs := <-called
	cancel := func(id int64) {
		_, err := r.Admin("ada").Cancel(t.Context(), id)
		is.NoErr(err)
	}
	exec(t, pool, `delete from trapeze.live where id = $1`, ids[1])
	exec(t, pool, `delete from trapeze.jobs where id = $1`, ids[1])
	cancel(ids[0])
	for _, j := range jobs {
		if j.ID() == ids[0] {
			<-j.Context().Done()
			is.True(errors.Is(context.Cause(j.Context()), job.ErrCancelled))
		}
	}
	is.Equal(get(t, r, ids[0]).State, job.Running) // the job runs until the call returns
	close(ended)
	is.NoErr(<-causes)
	is.Equal(waitEnded(t, r, ids[0]).State, job.Cancelled)
	is.Equal(waitEnded(t, r, ids[2]).State, job.Succeeded)
	is.Equal(p.sizes(), []int{3}) // the job whose context has ended is not called again
	pgtest.Wait(t, "the claim of the deleted job is closed", func() bool { return r.Running() == 0 })

	ids = sendParcels(t, r, "all", "all", "all")
	<-called
	for _, id := range ids {
		cancel(id)
	}
	is.True(errors.Is(<-causes, job.ErrCancelled))
	for _, id := range ids {
		is.Equal(waitEnded(t, r, id).State, job.Cancelled)
	}
}

// A pod that stops runs the batches that wait. After the grace period, it hands their jobs back.
func TestStopWithOpenBatch(t *testing.T) {
	t.Parallel()
	for name, wait := range map[string]time.Duration{"within the grace period": 100 * time.Millisecond, "after the grace period": time.Hour} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			is := is.New(t)
			pool := pgtest.Pool(t)
			var p postman
			o := runner.Options{}
			if wait == time.Hour {
				o.ShutdownGrace = 50 * time.Millisecond
			}
			r, stop := startBatches(t, pool, &p, 100, o, runner.BatchWait(wait))
			id := sendParcels(t, r, "")[0]
			pgtest.Wait(t, "the job has been claimed", func() bool { return queryOne[int](t, pool, `select attempt from trapeze.job where id = $1`, id) > 0 })
			stop()
			state, calls := job.Succeeded, []int{1}
			if wait == time.Hour {
				state, calls = job.Pending, nil
			}
			is.Equal(queryOne[job.State](t, pool, `select state from trapeze.job where id = $1`, id), state)
			is.Equal(queryOne[int](t, pool, `select crashes from trapeze.job where id = $1`, id), 0)
			is.Equal(p.sizes(), calls)
		})
	}
}

// A job that has crashed a pod is called alone.
func TestCrashedJobOutsideBatch(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	pool := pgtest.Pool(t)
	var p postman
	waiting := newRunner(t, pool, runner.Options{}, nil)
	runner.HandleBatch(waiting, p.handle)
	ids := sendParcels(t, waiting, "", "", "")
	exec(t, pool, `update trapeze.live set crashes = 1 where id = $1`, ids[1])
	r, _ := startBatches(t, pool, &p, 2, runner.Options{})
	for _, id := range ids {
		is.Equal(waitEnded(t, r, id).State, job.Succeeded)
	}
	is.Equal(p.sizes(), []int{1, 2})
}

// Values that middleware adds are in each job's context. The context of a call with several jobs has none.
func TestMiddlewareAroundBatch(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	type key struct{}
	var middle atomic.Int32
	wrong := make(chan string, 10)
	p := postman{do: func(ctx context.Context, jobs parcels) results {
		if ctx.Value(key{}) != nil {
			wrong <- "the context of the call has a value"
		}
		for _, j := range jobs {
			if j.Context().Value(key{}) != j.ID() {
				wrong <- fmt.Sprint("the context of job ", j.ID(), " has the value ", j.Context().Value(key{}))
			}
		}
		return make(results, len(jobs))
	}}
	r, _ := startBatches(t, pgtest.Pool(t), &p, 3, runner.Options{Middleware: []runner.Middleware{
		func(ctx context.Context, j *raw, next func(context.Context) (*runner.Outcome, error)) (*runner.Outcome, error) {
			middle.Add(1)
			return next(context.WithValue(ctx, key{}, j.ID()))
		},
	}})
	for _, id := range sendParcels(t, r, "", "", "") {
		is.Equal(waitEnded(t, r, id).State, job.Succeeded)
	}
	is.Equal(middle.Load(), int32(3))
	is.Equal(len(wrong), 0)
	is.Equal(new(runner.Job[parcel]).Context(), context.Background())
}

// The reply to the commit that ends a batch is lost. Every job's statement takes effect once.
func TestLostReplyOfBatch(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	url := pgtest.URL(t)
	direct := pgtest.Connect(t, url)
	exec(t, direct, `create table rows (job bigint)`)
	proxy, pool := cable(t, url)
	p := postman{do: func(_ context.Context, jobs parcels) (list results) {
		for _, j := range jobs {
			list = append(list, runner.BatchResult{Outcome: runner.Then(rawArgs("next")).Write(`insert into rows values ($1)`, j.ID())})
		}
		return list
	}}
	o := named("a")
	o.LeaseDuration = 6 * time.Second
	r, _ := startBatches(t, pool, &p, 5, o)
	cut, _ := proxy.CutReply("insert into rows")
	ids := sendParcels(t, r, make([]string, 5)...)
	<-cut
	for _, id := range ids {
		is.Equal(waitPipeline(t, direct, id), "succeeded")
		is.Equal(queryOne[int](t, direct, `select count(*) from rows where job = $1`, id), 1)
		is.Equal(queryOne[int](t, direct, `select count(*) from trapeze.jobs where pipeline_id = $1`, id), 2)
	}
	is.Equal(p.sizes(), []int{5})
	checkHistory(t, direct, r)
}

// A member that another claim takes over during the call writes nothing. The others are committed, and the member runs again.
func TestMemberOfBatchTakenOver(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	pool := pgtest.Pool(t)
	exec(t, pool, `create table rows (job bigint)`)
	called, taken := make(chan struct{}), make(chan struct{})
	p := postman{do: func(_ context.Context, jobs parcels) (list results) {
		if len(jobs) > 1 {
			close(called)
			<-taken
		}
		for _, j := range jobs {
			list = append(list, runner.BatchResult{Outcome: runner.Done(len(jobs)).Write(`insert into rows values ($1)`, j.ID())})
		}
		return list
	}}
	r, _ := startBatches(t, pool, &p, 3, runner.Options{PollInterval: 100 * time.Millisecond})
	ids := sendParcels(t, r, "", "", "")
	<-called
	exec(t, pool, `update trapeze.live set fence = fence + 1, crashes = 1, pod = gen_random_uuid() where id = $1`, ids[1])
	close(taken)
	for _, id := range []int64{ids[0], ids[2]} {
		j := waitEnded(t, r, id)
		is.Equal(string(j.Result), "3")
		is.Equal(j.Fence, int64(1))
	}
	pgtest.Wait(t, "the claim of the member is closed", func() bool { return r.Running() == 0 })
	is.Equal(queryOne[int](t, pool, `select count(*) from rows where job = $1`, ids[1]), 0)
	exec(t, pool, `update trapeze.live set state = 'pending', pod = null where id = $1`, ids[1]) // the pod of the other claim dies
	j := waitEnded(t, r, ids[1])
	is.Equal(string(j.Result), "1")
	is.Equal(j.Fence, int64(3))
	is.Equal(queryOne[int](t, pool, `select count(*) from rows`), 3)
	is.Equal(p.sizes(), []int{1, 3})
}

func TestInvalidBatchRegistration(t *testing.T) {
	t.Parallel()
	for says, register := range map[string]func(r *runner.Runner){
		"BatchSize(0), want at least 1": func(r *runner.Runner) {
			runner.HandleBatch(r, new(postman).handle, runner.BatchSize(0))
		},
		"BatchWait(-1ns), want 0 or more": func(r *runner.Runner) {
			runner.HandleBatch(r, new(postman).handle, runner.BatchWait(-1))
		},
		"Timeout(50ms) is not longer than BatchWait(50ms)": func(r *runner.Runner) {
			runner.HandleBatch(r, new(postman).handle, runner.Timeout(50*time.Millisecond))
		},
		"InactivityTimeout(1s) is not longer than BatchWait(1m0s)": func(r *runner.Runner) {
			runner.HandleBatch(r, new(postman).handle, runner.InactivityTimeout(time.Second), runner.BatchWait(time.Minute))
		},
		`kind "parcel": option 2 is nil`: func(r *runner.Runner) {
			runner.HandleBatch(r, new(postman).handle, runner.BatchSize(2), nil)
		},
		`the handler of kind "parcel" is nil`: func(r *runner.Runner) {
			runner.HandleBatch[parcel](r, nil)
		},
		`kind "k": BatchSize and BatchWait require HandleBatch`: func(r *runner.Runner) {
			runner.HandleRaw(r, "k", succeed, runner.BatchWait(0))
		},
	} {
		t.Run(says, func(t *testing.T) {
			r := newRunner(t, pgtest.Unconnected(t), runner.Options{}, nil)
			register(r)
			is.New(t).True(strings.Contains(fmt.Sprint(r.Run(t.Context())), says))
		})
	}
}
