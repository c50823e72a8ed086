package host_test

import (
	"context"
	"testing"

	"github.com/trapeze-run/trapeze/internal/engine"
	"github.com/trapeze-run/trapeze/internal/inside"
	"github.com/trapeze-run/trapeze/internal/pgtest"
	"github.com/trapeze-run/trapeze/internal/store"
	"github.com/trapeze-run/trapeze/internal/work"
	"github.com/trapeze-run/trapeze/remote/internal/host"
	"github.com/trapeze-run/trapeze/runner"
)

// does is the handler type that tests use.
type does = runner.Func[runner.Raw]

func TestMain(m *testing.M) { pgtest.Main(m) }

// hostOf returns the host of a runner's pod.
func hostOf(r *runner.Runner) *host.Host { return host.Of(inside.Of(r).Pod) }

// encoder is a runner with one handler, which returns the outcome stored in its context. [encoded] uses it for all outcomes.
var encoder = func() *runner.Runner {
	r, err := runner.NewRemote(runner.RemoteOptions{})
	if err != nil {
		panic(err)
	}
	runner.HandleRaw(r, "k", func(ctx context.Context, _ *runner.Job[runner.Raw]) (*runner.Outcome, error) {
		return ctx.Value(outcomeKey{}).(*runner.Outcome), nil
	})
	return r
}()

type outcomeKey struct{}

// encoded returns an outcome in the form that a remote worker reports.
func encoded(o *runner.Outcome) *work.Outcome {
	ctx := context.WithValue(context.Background(), outcomeKey{}, o)
	done, err := engine.Perform(ctx, inside.Of(encoder).Pod.Engine, "", engine.Assignment{Claimed: store.Claimed{Definition: store.Definition{Kind: "k"}}}, nil)
	if done == nil && o != nil {
		panic(err)
	}
	return done
}
