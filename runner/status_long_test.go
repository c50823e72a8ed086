//go:build long

package runner_test

import (
	"testing"
	"time"

	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/internal/pgtest"
	"github.com/trapeze-run/trapeze/job"
	"github.com/trapeze-run/trapeze/runner"
)

// Plain SQL has the same effect as the commands. Every pod applies the change at its next heartbeat.
func TestPlainSQLQueueCommands(t *testing.T) {
	t.Parallel()
	url := pgtest.URL(t)
	pool := pgtest.Connect(t, url)
	pods := startPods(t, url, 2, runner.Options{DirectURL: "off", PollInterval: time.Hour}, map[string]handler{"k": succeed})
	for name, c := range map[string]struct{ shut, open string }{
		"frozen":                    {`update trapeze.queue_state set frozen = true`, `update trapeze.queue_state set frozen = false`},
		"drained pods":              {`update trapeze.pods set drained = true`, `update trapeze.pods set drained = false`},
		"no slots":                  {`update trapeze.lanes set slots = 0`, `update trapeze.lanes set slots = null`},
		"a disabled lane":           {`update trapeze.lanes set enabled = false`, `update trapeze.lanes set enabled = true`},
		"no row of the queue state": {`delete from trapeze.queue_state`, `insert into trapeze.queue_state (paused) values (false)`},
	} {
		t.Run(name, func(t *testing.T) {
			is := is.New(t)
			submitted := func(state job.State) {
				t.Helper()
				for _, r := range pods {
					pgtest.Wait(t, "the pod has applied the change", func() bool {
						s, err := r.Enqueue(t.Context(), rawArgs("k"))
						is.NoErr(err)
						return s.State == state
					})
				}
			}
			exec(t, pool, c.shut)
			submitted(job.Pending)
			exec(t, pool, c.open)
			quiet(t, pool) // no poll is needed, because a pod claims jobs when its heartbeat reports the change
			submitted(job.Running)
			quiet(t, pool)
		})
	}
}
