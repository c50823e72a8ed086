//go:build long

package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/api"
	"github.com/trapeze-run/trapeze/internal/pgtest"
	"github.com/trapeze-run/trapeze/job"
	"github.com/trapeze-run/trapeze/runner"
)

func TestPipelineCommands(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	db := database{t, pgtest.URL(t)}
	pool := pgtest.Connect(t, db.url)
	r, err := runner.New(pool, runner.Options{PodName: "a", MaxAttempts: 1, Logger: slog.New(slog.NewTextHandler(io.Discard, nil))})
	is.NoErr(err)
	t.Cleanup(r.Close)
	var healed atomic.Bool
	of := func(kind string, args ...string) job.Args {
		return runner.Raw{Name: kind, JSON: []byte(strings.Join(args, ""))}
	}
	handle := func(kind string, do runner.Func[runner.Raw]) { runner.HandleRaw(r, kind, do) }
	handle("fans", func(context.Context, *runner.Job[runner.Raw]) (*runner.Outcome, error) {
		var children []job.Args
		for i := range 20 {
			children = append(children, runner.With(of("unit", fmt.Sprint(i)), runner.Subject(fmt.Sprintf("unit %d", i))))
		}
		return runner.FanOut(children...).FailFast().Join(of("totals")), nil
	})
	handle("unit", func(ctx context.Context, j *runner.Job[runner.Raw]) (*runner.Outcome, error) {
		switch {
		case healed.Load():
			return nil, nil
		case string(j.Args.JSON) == "7":
			return nil, errors.New("no coordinates\x1b[31m")
		}
		<-ctx.Done()
		return nil, context.Cause(ctx)
	})
	handle("totals", func(context.Context, *runner.Job[runner.Raw]) (*runner.Outcome, error) { return nil, nil })
	handle("waits", func(_ context.Context, j *runner.Job[runner.Raw]) (*runner.Outcome, error) {
		token, err := j.Token(t.Context())
		return runner.Deferred(2).Result(token), err
	})
	done := make(chan error, 1)
	ctx, stop := context.WithCancel(context.Background())
	t.Cleanup(func() { stop(); <-done })
	go func() { done <- r.Run(ctx) }()

	made, err := r.Enqueue(t.Context(), runner.Chain(of("fans"), of("totals")), runner.Pipeline("emissions"))
	is.NoErr(err)
	text := fmt.Sprint(made.ID)
	failed := db.run("pipeline", text, "--follow")
	is.Equal(failed.code, 1) // the pipeline failed
	is.True(strings.HasPrefix(failed.out, "pipeline "+text+` "emissions"  failed`))
	pgtest.Wait(t, "all of it has ended", func() bool {
		return decoded[api.Tree](t, db.ok("pipeline", text, "--json")).Jobs[0].FanOut.States[job.Cancelled] == 19
	})
	drawn := db.ok("pipeline", text)
	is.True(strings.Contains(drawn, "✗ fans"))
	is.True(strings.Contains(drawn, "20 of 20 children · 1 failed · 19 cancelled"))
	is.True(strings.Contains(drawn, "│  ✗ unit                  1008"))
	is.True(!strings.Contains(drawn, "\x1b")) // escape sequences in errors are removed
	listed := db.ok("pipelines", "--status", "failed")
	is.True(strings.Contains(listed, "emissions"))
	is.True(strings.Contains(listed, "1 of 20 children failed"))
	is.Equal(db.ok("pipelines", "--status", "running", "--json"), "")
	is.Equal(db.run("pipelines", "--status", "happy").code, 2)

	healed.Store(true)
	is.Equal(strings.TrimSpace(db.ok("pipeline", "retry", text)), "pipeline "+text+" continues with 20 jobs")
	is.Equal(db.run("pipeline", text, "--follow").code, 0)
	drawn = db.ok("pipeline", text)
	is.True(strings.Contains(drawn, "████████████████████████ 20 of 20 children · 20 succeeded"))
	is.Equal(strings.Count(drawn, "✓ totals"), 2) // once as the join and once as the planned step of the chain
	is.Equal(db.run("pipeline", "retry", text).code, 1)
	is.Equal(db.run("cancel-pipeline", text).code, 1) // the pipeline has already finished

	made, err = r.Enqueue(t.Context(), runner.Chain(of("waits"), of("totals")))
	is.NoErr(err)
	text = fmt.Sprint(made.ID)
	db.inState(text, job.Waiting)
	is.True(strings.Contains(db.ok("pipeline", text), "· totals                   planned"))
	var token string
	is.NoErr(pool.QueryRow(t.Context(), `select token from trapeze.deferrals where id = $1`, made.ID).Scan(&token))
	is.Equal(strings.TrimSpace(db.ok("complete", text, "--token", token, "--part", "a", "--result", `{"rows":12}`)), "job "+text+" is waiting 1/2 (50%)")
	is.Equal(db.run("complete", text, "--token", "guess").code, 1)
	var did struct{ Cancelled []string }
	is.NoErr(json.Unmarshal([]byte(db.ok("cancel-pipeline", text, "--json")), &did))
	is.Equal(did.Cancelled, []string{text})
	is.True(strings.HasPrefix(db.ok("pipeline", text), "pipeline "+text+"  cancelled"))
	is.Equal(db.run("cancel-pipeline", "99999999").code, 1) // no such pipeline
}
