package runnertest_test

import (
	"context"
	"errors"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/internal/pgtest"
	"github.com/trapeze-run/trapeze/runner"
	"github.com/trapeze-run/trapeze/runner/runnertest"
)

type Charge struct{ Order int }

func (Charge) Kind() string { return "charge" }

type Remind struct{ Order int }

func (Remind) Kind() string { return "remind" }

// register registers a shop's handlers, as the shop's main function would.
func register(r *runner.Runner) {
	runner.Handle(r, func(_ context.Context, j *runner.Job[Charge]) (*runner.Outcome, error) {
		order := j.Args.Order
		return runner.Then(Remind{order}, runner.Delay(24*time.Hour)).InTx(func(ctx context.Context, tx pgx.Tx) error {
			_, err := tx.Exec(ctx, `insert into charges values ($1)`, order)
			return err
		}), nil
	})
	runner.Handle(r, func(context.Context, *runner.Job[Remind]) (*runner.Outcome, error) { return nil, nil })
}

func connect(t *testing.T) *pgxpool.Pool {
	pool := pgtest.Connect(t, pgtest.EmptyURL(t))
	if _, err := pool.Exec(t.Context(), `create table charges ("order" int)`); err != nil {
		t.Fatal(err)
	}
	return pool
}

// docs:begin
func TestDocsOrderChargePodDeaths(t *testing.T) {
	pool := connect(t) // any pool for a test database
	h := runnertest.New(t, pool, runner.Options{}, register)

	id := h.Enqueue(Charge{Order: 7})
	h.DieAt(runnertest.DuringCommit, "charge") // the pod dies while its commit is in flight
	h.RunUntilIdle()                           // another pod takes over

	h.RequireState(id, runner.StateSucceeded)
	var charged int
	if err := pool.QueryRow(t.Context(), `select count(*) from charges where "order" = 7`).Scan(&charged); err != nil || charged != 1 {
		t.Errorf("charged %d times: %v", charged, err)
	}

	remind := h.RequireEnqueued(Remind{Order: 7})
	h.RequireState(remind.ID, runner.StatePending)
	h.Advance(24 * time.Hour)
	h.RunUntilIdle()
	h.RequireState(remind.ID, runner.StateSucceeded)
}

// docs:end

// refund refunds an order unless the bank is closed.
func refund(ctx context.Context, j *runner.Job[Refund]) (*runner.Outcome, error) {
	var charged struct{ Cents int }
	if err := j.PreviousResult(ctx, &charged); err != nil {
		return nil, runner.Permanent(err)
	}
	if j.Attempt() == 1 {
		return nil, runner.RetryAfter(time.Hour, errors.New("the bank is closed"))
	}
	j.Message("paying back")
	return runner.Then(Remind(j.Args)).Result(charged.Cents).InTx(func(ctx context.Context, tx pgx.Tx) error {
		_, err := tx.Exec(ctx, `delete from charges where "order" = $1`, j.Args.Order)
		return err
	}), nil
}

type Refund struct{ Order int }

func (Refund) Kind() string { return "refund" }

// docs:begin
func TestDocsRefundAfterClockAdvance(t *testing.T) {
	charged := map[string]int{"Cents": 250} // the result of the previous step

	run := runnertest.Call(t, refund, Refund{Order: 7}, runnertest.CallOptions{PreviousResult: charged})
	run.RequireState(runner.StatePending) // it will be retried
	if run.RetryAfter == nil || *run.RetryAfter != time.Hour {
		t.Error("the job should be retried after an hour:", run.Err)
	}

	run = runnertest.Call(t, refund, Refund{Order: 7}, runnertest.CallOptions{PreviousResult: charged, Attempt: 2})
	run.RequireState(runner.StateSucceeded)
	if run.Next.Kind != "remind" || string(run.Result) != "250" || len(run.InTx) != 1 {
		t.Errorf("the next step is %s, the result %s", run.Next.Kind, run.Result)
	}
}

// docs:end

// cancelOrder represents application code that enqueues a job in a transaction.
func cancelOrder(ctx context.Context, tx pgx.Tx, r *runner.Runner, order int) error {
	_, err := r.EnqueueTx(ctx, tx, Remind{order})
	return err
}

// docs:begin
func TestDocsCancelledOrderReminder(t *testing.T) {
	pool := connect(t)
	h := runnertest.New(t, pool, runner.Options{}, register)

	tx, err := pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback(context.Background()) // removes the test's jobs
	if err := cancelOrder(t.Context(), tx, h.Runner(), 7); err != nil {
		t.Fatal(err)
	}
	runnertest.RequireEnqueued(t, tx, h.Schema(), Remind{Order: 7})
	runnertest.RequireNotEnqueued(t, tx, h.Schema(), Charge{Order: 7})
}

// docs:end

// docs:begin
func TestAScheduleChargesEveryMorning(t *testing.T) {
	h := runnertest.New(t, connect(t), runner.Options{}, func(r *runner.Runner) {
		register(r)
		r.DeclareSchedule("morning", "0 9 * * *", Charge{Order: 7})
	})
	h.Advance(24 * time.Hour)
	h.RunUntilIdle()
	h.RequireState(h.RequireEnqueued(Charge{Order: 7}).ID, runner.StateSucceeded)
}

// docs:end

// docs:begin
// enqueuer is the part of *runner.Runner that a service needs.
type enqueuer interface {
	Enqueue(ctx context.Context, args runner.Args, options ...runner.EnqueueOption) (runner.Submitted, error)
}

// fake is an enqueuer that records submissions.
type fake struct{ jobs []runner.Submission }

func (f *fake) Enqueue(_ context.Context, args runner.Args, options ...runner.EnqueueOption) (runner.Submitted, error) {
	s, err := runner.Describe(args, options...)
	f.jobs = append(f.jobs, s)
	return runner.Submitted{ID: int64(len(f.jobs)), State: runner.StatePending}, err
}

// docs:end

func TestDocsFakeEnqueuerOptions(t *testing.T) {
	is := is.New(t)
	f := &fake{}
	_, err := enqueuer(f).Enqueue(t.Context(), Remind{7}, runner.Delay(time.Hour))
	is.NoErr(err)
	is.Equal(f.jobs[0].Kind, "remind")
	is.Equal(f.jobs[0].Delay, time.Hour)
}

func TestDocsCodeMatchesTestFile(t *testing.T) {
	is := is.New(t)
	source, err := os.ReadFile("documented_test.go")
	is.NoErr(err)
	page, err := os.ReadFile("../../docs/testing-your-jobs.md")
	is.NoErr(err)
	parts := strings.Split(string(source), "// docs:begin\n")[1:]
	is.Equal(len(parts), strings.Count(string(page), "```go\n")) // each code block on the page is marked in this file
	for _, part := range parts {
		body, _, ok := strings.Cut(part, "\n// docs:end\n")
		is.True(ok)                                                     // each block has an end marker
		is.True(strings.Contains(string(page), "```go\n"+body+"\n```")) // the page contains the block verbatim
	}
}

type Reindex struct{ Doc string }

func (Reindex) Kind() string { return "reindex" }

// reindex stands for a batch function that indexes documents.
func reindex(_ context.Context, jobs []*runner.Job[Reindex]) []runner.BatchResult {
	results := make([]runner.BatchResult, len(jobs))
	for i, j := range jobs {
		if j.Args.Doc == "" {
			results[i].Err = runner.Permanent(errors.New("an empty document"))
		}
	}
	return results
}

// docs:begin
func TestDocsReindexBatch(t *testing.T) {
	runs := runnertest.CallBatch(t, reindex, []Reindex{{Doc: "a"}, {Doc: ""}})
	runs[0].RequireState(runner.StateSucceeded)
	runs[1].RequireState(runner.StateFailed)
}

// docs:end
