//go:build long

package runner_test

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/internal/pgtest"
	"github.com/trapeze-run/trapeze/job"
	"github.com/trapeze-run/trapeze/runner"
)

// No matter which reply is lost during a fan-out, each child runs exactly once, and so does the join.
func TestLostReplyDuringFanOut(t *testing.T) {
	t.Parallel()
	for name, cut := range someOf(map[string]string{
		"to the children":            "args-of-child",
		"to the waiting":             "result-of-parent",
		"to its commit":              "commit",
		"to the end of a child":      "result-of-child",
		"to the end that waited for": "args-of-join",
		"to the end of the join":     "result-of-join",
		"to what reads the fan-out":  "fan_outs f join",
	}, "to the children", "to its commit", "to the end that waited for", "to what reads the fan-out") {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			is := is.New(t)
			url := pgtest.URL(t)
			direct := pgtest.Connect(t, url)
			proxy, pool := cable(t, url)
			var children, joined atomic.Int64
			o := named("a")
			o.PollInterval, o.LeaseDuration = 200*time.Millisecond, 6*time.Second
			start(t, pool, o, map[string]handler{
				"parent": func(context.Context, *raw) (*runner.Outcome, error) {
					list := []job.Args{rawArgs("child", `"args-of-child"`), rawArgs("child", `2`), rawArgs("child", `3`)}
					return runner.FanOut(list...).Join(rawArgs("join", `"args-of-join"`)).Result("result-of-parent"), nil
				},
				"child": func(context.Context, *raw) (*runner.Outcome, error) {
					children.Add(1)
					return runner.Done("result-of-child"), nil
				},
				"join": func(context.Context, *raw) (*runner.Outcome, error) {
					joined.Add(1)
					return runner.Done("result-of-join"), nil
				},
			})
			submitter := newRunner(t, direct, o, map[string]handler{"parent": succeed})
			lost := proxy.CutReplyOnce(holds(cut))
			id := enqueue(t, submitter, rawArgs("parent"))
			is.Equal(waitPipeline(t, direct, id), "succeeded")
			<-lost
			quiet(t, direct)
			is.Equal(queryOne[int](t, direct, `select count(*) from trapeze.jobs where kind = 'child'`), 3)
			is.Equal(queryOne[int](t, direct, `select count(*) from trapeze.jobs where kind = 'join'`), 1)
			is.Equal(children.Load(), int64(3))
			is.Equal(joined.Load(), int64(1))
			checkHistory(t, direct, submitter)
		})
	}
}
