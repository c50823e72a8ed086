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

// No matter which reply is lost while many jobs are being submitted, each job then exists exactly once.
func TestLostReplyToBulk(t *testing.T) {
	t.Parallel()
	const n = 300
	url := pgtest.URL(t)
	direct := pgtest.Connect(t, url)
	proxy, pool := cable(t, url)
	var runs atomic.Int64
	o := named("a")
	o.PollInterval, o.LeaseDuration = 200*time.Millisecond, 6*time.Second
	r := start(t, pool, o, map[string]handler{"kind-a": func(context.Context, *raw) (*runner.Outcome, error) {
		runs.Add(1)
		return nil, nil
	}})
	list := make([]job.Args, n)
	for i := range list {
		list[i] = rawArgs("kind-a", `"args-of-many"`)
	}
	submitted := 0
	for _, c := range []struct{ name, cut string }{
		{"to the events", "job.enqueued"}, // first, because the proxy sees a statement's text only until the statement is prepared
		{"to the beginning", "begin"},
		{"to the first rows", "args-of-many"},
		{"to the second copy", `copy "trapeze"."live"`},
		{"to the commit", "commit"},
	} {
		t.Run(c.name, func(t *testing.T) {
			is := is.New(t)
			lost := proxy.CutReplyOnce(holds(c.cut))
			ids, err := r.EnqueueMany(t.Context(), list)
			is.NoErr(err)
			<-lost
			is.Equal(len(ids), n)
			submitted += n
			quiet(t, direct)
			is.Equal(queryOne[int](t, direct, `select count(*) from trapeze.jobs`), submitted)
			is.Equal(queryOne[int](t, direct, `select count(*) from trapeze.done where state = 'succeeded'`), submitted)
			is.Equal(int(runs.Load()), submitted)
		})
	}
	checkHistory(t, direct, r)
}
