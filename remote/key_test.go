package remote_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/internal/inside"
	"github.com/trapeze-run/trapeze/internal/pgtest"
	"github.com/trapeze-run/trapeze/job"
	"github.com/trapeze-run/trapeze/remote/server"
	"github.com/trapeze-run/trapeze/remote/worker"
	"github.com/trapeze-run/trapeze/runner"
)

// Remote handlers can read the key of a job. Next steps and children have the same key, unless they set another one or none.
func TestKeyOfRemoteJob(t *testing.T) {
	is := is.New(t)
	p := startPod(t, pgtest.Pool(t), runner.Options{}, server.Options{})
	seen := make(chan string, 10)
	type handled = runner.Job[runner.Raw]
	startWorker(t, worker.Options{Server: p.url, Name: "gpu-1"}, func(r *runner.Runner) {
		note := func(_ context.Context, j *handled) (*runner.Outcome, error) {
			seen <- string(j.Args.JSON) + ":" + j.Key()
			return nil, nil
		}
		runner.HandleRaw(r, "fan", func(ctx context.Context, j *handled) (*runner.Outcome, error) {
			_, _ = note(ctx, j)
			return runner.FanOut(raw("note", `1`), runner.With(raw("note", `2`), runner.Key("other"))).Join(raw("then", `3`)), nil
		})
		runner.HandleRaw(r, "then", func(ctx context.Context, j *handled) (*runner.Outcome, error) {
			_, _ = note(ctx, j)
			return runner.Then(runner.Chain(raw("note", `4`), runner.With(raw("note", `5`), runner.Key(""))), runner.Key("next")), nil
		})
		runner.HandleRaw(r, "note", note)
		refused := func(option runner.HandleOption, why string) {
			wrong, err := runner.NewRemote(runner.RemoteOptions{})
			is.NoErr(err)
			defer wrong.Close()
			runner.HandleRaw(wrong, "limited", note, option)
			is.True(strings.Contains(inside.Of(wrong).Check().Error(), why))
		}
		refused(runner.ConcurrencyPerKey(1), "ConcurrencyPerKey, which a remote worker cannot declare")
		refused(runner.StartWithin(time.Minute), "StartWithin, which a remote worker cannot declare")
	})
	id := submit(t, p, raw("fan", `0`), runner.Key("tenant"))
	is.Equal(ends(t, p, id, job.Succeeded).Key, "tenant")
	got := map[string]bool{}
	for range 6 {
		got[<-seen] = true
	}
	is.Equal(got, map[string]bool{"0:tenant": true, "1:tenant": true, "2:other": true, "3:tenant": true, "4:next": true, "5:": true})
}
