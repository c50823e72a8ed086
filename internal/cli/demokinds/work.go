package demokinds

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

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
func (effect) Kind() string   { return "demo.effect" }

func (e *echo) UnmarshalJSON(raw []byte) error { e.raw = append(e.raw, raw...); return nil }

func (d *demo) noop(context.Context, *claim[noop]) (*runner.Outcome, error) { return nil, nil }

func (d *demo) echo(_ context.Context, c *claim[echo]) (*runner.Outcome, error) {
	return runner.Done(c.job.Args.raw), nil
}

func (d *demo) result(_ context.Context, c *claim[result]) (*runner.Outcome, error) {
	return runner.Done(strings.Repeat("x", max(c.job.Args.Bytes, 0))), nil
}

func (d *demo) sleep(ctx context.Context, c *claim[sleep]) (*runner.Outcome, error) {
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

func (d *demo) progress(ctx context.Context, c *claim[progress]) (*runner.Outcome, error) {
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
func (d *demo) snooze(ctx context.Context, c *claim[snooze]) (*runner.Outcome, error) {
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
func (d *demo) tx(ctx context.Context, c *claim[tx]) (*runner.Outcome, error) {
	if c.job.Args.MS > 0 {
		if err := wait(ctx, time.Duration(c.job.Args.MS)*time.Millisecond); err != nil {
			return nil, err
		}
	}
	id, fence, args, done := c.job.ID(), c.job.Fence(), c.job.Args, runner.Done(map[string]int{"rows": c.job.Args.Rows})
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

func (d *demo) effect(ctx context.Context, c *claim[effect]) (*runner.Outcome, error) {
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
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-timer.C:
		return nil
	}
}
