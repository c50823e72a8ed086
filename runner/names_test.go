package runner_test

import (
	"errors"
	"testing"

	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/internal/inside"
	"github.com/trapeze-run/trapeze/internal/pgtest"
	"github.com/trapeze-run/trapeze/internal/store/view"
	"github.com/trapeze-run/trapeze/job"
	"github.com/trapeze-run/trapeze/runner"
)

func TestKindAndNameAlphabet(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	const evil = "x; touch pwned"
	r, err := runner.New(pgtest.Pool(t), runner.Options{PodName: evil})
	is.NoErr(err)
	defer r.Close()
	wrong := newRunner(t, pgtest.Unconnected(t), runner.Options{}, nil)
	runner.HandleRaw(wrong, evil, succeed)
	is.True(errors.Is(wrong.Run(t.Context()), job.ErrInvalid))
	runner.HandleRaw(r, "k", succeed)
	_, err = r.Enqueue(t.Context(), rawArgs(evil), runner.AllowUnregistered())
	is.True(errors.Is(err, job.ErrInvalid))
	_, err = r.Enqueue(t.Context(), runner.Chain(rawArgs("k"), runner.With(rawArgs(evil))), runner.AllowUnregistered())
	is.True(errors.Is(err, job.ErrInvalid)) // a later step is rejected too
	kind, expression := evil, "@daily"
	_, err = r.Admin("ann").SetSchedule(t.Context(), "nightly", job.ScheduleChange{Kind: &kind, Expression: &expression})
	is.True(errors.Is(err, job.ErrInvalidSchedule))
	_, err = r.Admin("ann").SetLane(t.Context(), evil, job.LaneChange{})
	is.True(errors.Is(err, job.ErrInvalidSetting))
	run(t, r)
	pods, err := view.Pods(t.Context(), inside.Of(r).Store, false)
	is.NoErr(err)
	is.Equal(pods[0].Name, "x-touch-pwned")
}
