package program

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/trapeze-run/trapeze/job"
	"github.com/trapeze-run/trapeze/runner"
)

// These kinds behave normally.
type (
	noop struct{}

	// echo accepts any JSON and returns it as the job's result.
	echo struct{ raw json.RawMessage }

	result struct {
		Bytes int `json:"bytes"`
	}

	// sleep takes MS milliseconds in total and reports Ticks evenly spaced ticks.
	sleep struct {
		MS        int64 `json:"ms"`
		Ticks     int   `json:"ticks"`
		IgnoreCtx bool  `json:"ignore_ctx"`
	}

	// progress takes MS milliseconds for each step.
	progress struct {
		Steps int   `json:"steps"`
		MS    int64 `json:"ms"`
	}

	snooze struct {
		Times   int   `json:"times"`
		DelayMS int64 `json:"delay_ms"`
	}

	// tx waits MS milliseconds before it writes.
	tx struct {
		Rows     int   `json:"rows"`
		Rollback bool  `json:"rollback"`
		MS       int64 `json:"ms"`
	}

	// batch writes like tx, up to five jobs per call. With Panic, the call of several jobs panics, and so does that of this job alone.
	batch struct {
		tx
		Panic bool `json:"panic"`
	}

	effect struct {
		N int `json:"n"`
	}
)

func (noop) Kind() string     { return "demo.noop" }
func (echo) Kind() string     { return "demo.echo" }
func (result) Kind() string   { return "demo.result" }
func (sleep) Kind() string    { return "demo.sleep" }
func (progress) Kind() string { return "demo.progress" }
func (snooze) Kind() string   { return "demo.snooze" }
func (tx) Kind() string       { return "demo.tx" }
func (batch) Kind() string    { return "demo.batch" }
func (effect) Kind() string   { return "demo.effect" }

func (e *echo) UnmarshalJSON(raw []byte) error { e.raw = append(e.raw, raw...); return nil }

func (d *demoKinds) noop(context.Context, *claim[noop]) (*runner.Outcome, error) { return nil, nil }

func (d *demoKinds) echo(_ context.Context, c *claim[echo]) (*runner.Outcome, error) {
	return runner.Done(c.job.Args.raw), nil
}

func (d *demoKinds) result(_ context.Context, c *claim[result]) (*runner.Outcome, error) {
	return runner.Done(strings.Repeat("x", max(c.job.Args.Bytes, 0))), nil
}

func (d *demoKinds) sleep(ctx context.Context, c *claim[sleep]) (*runner.Outcome, error) {
	pauses := max(c.job.Args.Ticks, 1)
	each := time.Duration(c.job.Args.MS) * time.Millisecond / time.Duration(pauses)
	for i := range pauses {
		if c.job.Args.IgnoreCtx {
			time.Sleep(each)
		} else if err := wait(ctx, each); err != nil {
			return nil, err
		}
		if c.job.Args.Ticks > 0 {
			c.job.Progress(int64(i+1), int64(c.job.Args.Ticks))
			if err := c.post(ctx, "tick", ""); err != nil {
				return nil, err
			}
		}
	}
	return nil, nil
}

func (d *demoKinds) progress(ctx context.Context, c *claim[progress]) (*runner.Outcome, error) {
	c.job.Progress(0, int64(c.job.Args.Steps))
	for i := range c.job.Args.Steps {
		if err := wait(ctx, time.Duration(c.job.Args.MS)*time.Millisecond); err != nil {
			return nil, err
		}
		c.job.Progress(int64(i+1), int64(c.job.Args.Steps))
		c.job.Message(fmt.Sprintf("step %d of %d", i+1, c.job.Args.Steps))
		if err := c.post(ctx, "tick", ""); err != nil {
			return nil, err
		}
	}
	return runner.Done(map[string]int{"steps": c.job.Args.Steps}), nil
}

// snooze counts its runs in a checkpoint, because neither existing counter is suitable: a snooze does not increase the attempt number,
// and the fence increases after crashes too.
func (d *demoKinds) snooze(ctx context.Context, c *claim[snooze]) (*runner.Outcome, error) {
	var done int
	if _, err := c.job.LastCheckpoint(&done); err != nil {
		return nil, err
	}
	if done >= c.job.Args.Times {
		return runner.Done(map[string]int{"times": done}), nil
	}
	done++
	var err error
	switch {
	case d.rows == "": // a remote worker has no database
		err = c.job.Checkpoint(ctx, done)
	case c.job.ID()%2 == 0:
		err = c.job.Write(ctx, done, nil)
	default:
		err = c.job.Tx(ctx, func(pgx.Tx) error { return nil }, done)
	}
	if err != nil {
		return nil, err
	}
	return runner.Snooze(time.Duration(c.job.Args.DelayMS)*time.Millisecond, fmt.Sprintf("wait %d of %d", done, c.job.Args.Times)), nil
}

// tx writes its rows in the commit that finishes the job. Jobs with odd IDs and jobs that roll back use a transaction. The others use a
// statement that shares a commit with other jobs.
func (d *demoKinds) tx(ctx context.Context, c *claim[tx]) (*runner.Outcome, error) {
	return d.write(ctx, c.job.ID(), c.job.Fence(), c.job.Args)
}

func (d *demoKinds) write(ctx context.Context, id, fence int64, args tx) (*runner.Outcome, error) {
	if args.MS > 0 {
		if err := wait(ctx, time.Duration(args.MS)*time.Millisecond); err != nil {
			return nil, err
		}
	}
	done := runner.Done(map[string]int{"rows": args.Rows})
	insert := `insert into ` + d.rows + ` (job_id, fence, n) select $1, $2, n from generate_series(1, $3::int) n`
	if id%2 == 0 && !args.Rollback {
		return done.Write(insert, id, fence, args.Rows), nil
	}
	return done.InTx(func(ctx context.Context, t pgx.Tx) error {
		if _, err := t.Exec(ctx, insert, id, fence, args.Rows); err != nil {
			return err
		}
		if args.Rollback {
			return fmt.Errorf("rolled back %d rows on request", args.Rows)
		}
		return nil
	}), nil
}

func (d *demoKinds) batch(_ context.Context, jobs []*runner.Job[batch]) []runner.BatchResult {
	if len(jobs) > 1 && slices.ContainsFunc(jobs, func(j *runner.Job[batch]) bool { return j.Args.Panic }) {
		panic("panic of a batch on request")
	}
	one := reporting(d, func(ctx context.Context, c *claim[batch]) (*runner.Outcome, error) {
		if c.job.Args.Panic {
			panic("panic on request")
		}
		return d.write(ctx, c.job.ID(), c.job.Fence(), c.job.Args.tx)
	})
	results := make([]runner.BatchResult, len(jobs))
	for i, j := range jobs {
		results[i].Outcome, results[i].Err = one(j.Context(), j)
	}
	return results
}

func (d *demoKinds) effect(ctx context.Context, c *claim[effect]) (*runner.Outcome, error) {
	n := max(c.job.Args.N, 1)
	for range n {
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		if err := c.post(ctx, "effect", ""); err != nil {
			return nil, err
		}
	}
	return runner.Done(map[string]int{"effects": n}), nil
}

// wait waits for d. If ctx is cancelled first, wait returns the cause.
func wait(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-time.After(d):
		return nil
	}
}

// chain submits a pipeline's steps and, optionally, a compensating step. It does no other work.
type chain struct {
	Steps []chainStep `json:"steps"`
	Undo  *chainStep  `json:"undo"`
}

// chainStep is one step of a chain. Missing fields are inherited from the previous step.
type chainStep struct {
	Kind     string          `json:"kind"`
	Args     json.RawMessage `json:"args"`
	Lane     string          `json:"lane"`
	Subject  *string         `json:"subject"`
	Priority *int            `json:"priority"`
}

func (chain) Kind() string { return "demo.chain" }

func (d *demoKinds) chain(_ context.Context, c *claim[chain]) (*runner.Outcome, error) {
	if len(c.job.Args.Steps) == 0 {
		return nil, nil
	}
	steps := make([]job.Args, len(c.job.Args.Steps))
	for i, s := range c.job.Args.Steps {
		steps[i] = s.step()
	}
	o := runner.Then(runner.Chain(steps[0], steps[1:]...))
	if c.job.Args.Undo != nil {
		o = o.OnFailureOrCancel(c.job.Args.Undo.step())
	}
	return o, nil
}

func (s chainStep) step() job.Args {
	var options []runner.EnqueueOption
	if s.Lane != "" {
		options = append(options, runner.Lane(s.Lane))
	}
	if s.Subject != nil {
		options = append(options, runner.Subject(*s.Subject))
	}
	if s.Priority != nil {
		options = append(options, runner.Priority(*s.Priority))
	}
	return runner.With(runner.Raw{Name: s.Kind, JSON: s.Args}, options...)
}

// fanOut starts N identical children and, if given, a join. Policy is continue (the default) or fail_fast.
type fanOut struct {
	N      int        `json:"n"`
	Child  chainStep  `json:"child"` // the default is demo.noop
	Join   *chainStep `json:"join"`
	Policy string     `json:"policy"`
}

func (fanOut) Kind() string { return "demo.fanout" }

// mostChildren keeps a huge fan-out from exhausting memory before the runner's limit applies. It is far above the limit of any runner.
const mostChildren = 1_000_000

func (d *demoKinds) fanOut(_ context.Context, c *claim[fanOut]) (*runner.Outcome, error) {
	a := c.job.Args
	if a.N < 0 || a.N > mostChildren {
		return nil, job.Permanent(fmt.Errorf("%w: n %d, want 0 to %d", job.ErrInvalidArgs, a.N, mostChildren))
	}
	if a.Child.Kind == "" {
		a.Child.Kind = "demo.noop"
	}
	o := runner.FanOut(slices.Repeat([]job.Args{a.Child.step()}, a.N)...).Result(map[string]int{"n": a.N})
	if a.Join != nil {
		o.Join(a.Join.step())
	}
	switch a.Policy {
	case "", "continue":
		return o, nil
	case "fail_fast":
		return o.FailFast(), nil
	}
	return nil, job.Permanent(fmt.Errorf("%w: policy %q, want continue or fail_fast", job.ErrInvalidArgs, a.Policy))
}

// These kinds misbehave on purpose.
type (
	// fail returns an error whose text is Message followed by Bytes, which need not be valid UTF-8.
	fail struct {
		Message   string `json:"message"`
		Bytes     []byte `json:"bytes_b64"`
		Permanent bool   `json:"permanent"`
	}

	// flaky fails with probability P, between 0 and 1.
	flaky struct {
		P float64 `json:"p"`
	}

	// panics panics in its handler. If Where is "goroutine", it panics in another goroutine, which crashes the process.
	panics struct {
		Where string `json:"where"`
		Bytes []byte `json:"bytes_b64"`
	}

	exit struct {
		Code int `json:"code"`
	}

	goexit struct{}

	// spin keeps a CPU busy for MS milliseconds and ignores its context. If MS is 0, it spins forever.
	spin struct {
		MS int64 `json:"ms"`
	}

	// block blocks forever and ignores its context.
	block struct{}

	// leak leaks N goroutines, or 1 if N is not set.
	leak struct {
		N int `json:"n"`
	}

	// hog holds MB MiB of memory while it is running.
	hog struct {
		MB int `json:"mb"`
	}
)

func (fail) Kind() string   { return "demo.fail" }
func (flaky) Kind() string  { return "demo.flaky" }
func (panics) Kind() string { return "demo.panic" }
func (exit) Kind() string   { return "demo.exit" }
func (goexit) Kind() string { return "demo.goexit" }
func (spin) Kind() string   { return "demo.spin" }
func (block) Kind() string  { return "demo.block" }
func (leak) Kind() string   { return "demo.leak" }
func (hog) Kind() string    { return "demo.hog" }

func (d *demoKinds) fail(_ context.Context, c *claim[fail]) (*runner.Outcome, error) {
	message := c.job.Args.Message + string(c.job.Args.Bytes)
	if message == "" {
		message = "failed on request"
	}
	err := errors.New(message)
	if c.job.Args.Permanent {
		err = job.Permanent(err)
	}
	return nil, err
}

func (d *demoKinds) flaky(_ context.Context, c *claim[flaky]) (*runner.Outcome, error) {
	if rand.Float64() < c.job.Args.P { // #nosec G404 -- a demo job fails by chance
		return nil, fmt.Errorf("failed with probability %g", c.job.Args.P)
	}
	return nil, nil
}

func (d *demoKinds) panics(ctx context.Context, c *claim[panics]) (*runner.Outcome, error) {
	message := "panic on request" + string(c.job.Args.Bytes)
	switch c.job.Args.Where {
	case "", "handler":
		panic(message)
	case "goroutine":
		go panic(message)
		<-ctx.Done()
		return nil, context.Cause(ctx)
	}
	return nil, job.Permanent(fmt.Errorf("%w: where %q, want handler or goroutine", job.ErrInvalidArgs, c.job.Args.Where))
}

func (d *demoKinds) exit(_ context.Context, c *claim[exit]) (*runner.Outcome, error) {
	os.Exit(c.job.Args.Code)
	return nil, nil
}

func (d *demoKinds) goexit(context.Context, *claim[goexit]) (*runner.Outcome, error) {
	runtime.Goexit()
	return nil, nil
}

func (d *demoKinds) spin(_ context.Context, c *claim[spin]) (*runner.Outcome, error) {
	length := time.Duration(c.job.Args.MS) * time.Millisecond
	for began := time.Now(); length == 0 || time.Since(began) < length; {
	}
	return nil, nil
}

func (d *demoKinds) block(context.Context, *claim[block]) (*runner.Outcome, error) {
	select {}
}

func (d *demoKinds) leak(_ context.Context, c *claim[leak]) (*runner.Outcome, error) {
	for range max(c.job.Args.N, 1) {
		go func() { select {} }()
	}
	return nil, nil
}

func (d *demoKinds) hog(_ context.Context, c *claim[hog]) (*runner.Outcome, error) {
	const mebibyte = 1 << 20
	held := make([]byte, max(c.job.Args.MB, 0)*mebibyte)
	for i := 0; i < len(held); i += 4096 {
		held[i] = 1 // pages that are never written would not use memory
	}
	runtime.KeepAlive(held)
	return runner.Done(map[string]int{"mb": c.job.Args.MB}), nil
}
