package runner_test

import (
	"context"
	"encoding/json"
	"errors"
	"reflect"
	"testing"
	"time"

	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/runner"
)

type invoice struct{ Order int }

func (invoice) Kind() string { return "invoice" }

// enqueuer is the subset of a runner that the service under test needs.
type enqueuer interface {
	Enqueue(ctx context.Context, args runner.Args, options ...runner.EnqueueOption) (runner.Submitted, error)
}

var _ enqueuer = (*runner.Runner)(nil)

// written is an enqueuer that records the submissions.
type written struct{ jobs []runner.Submission }

func (w *written) Enqueue(_ context.Context, args runner.Args, options ...runner.EnqueueOption) (runner.Submitted, error) {
	s, err := runner.Describe(args, options...)
	w.jobs = append(w.jobs, s)
	return runner.Submitted{ID: int64(len(w.jobs))}, err
}

func TestFakeSubmissionOptions(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	fake := &written{}
	service := func(e enqueuer) error { // the code under test
		_, err := e.Enqueue(t.Context(), runner.Chain(invoice{7}, runner.With(invoice{8}, runner.Lane("slow"))),
			runner.Subject("order 7"), runner.Lane("money"), runner.Priority(0), runner.Delay(time.Hour), runner.MaxAttempts(3),
			runner.Unique("7", runner.WhileActive), runner.IdempotencyKey("again"), runner.Submitter("ann"), runner.Pipeline("billing"),
			runner.NeedsApproval(), runner.AllowUnregistered(), runner.Ordered(), runner.StartBy(2*time.Hour))
		return err
	}
	is.NoErr(service(fake))
	s := fake.jobs[0]
	is.Equal(s.Kind, "invoice")
	is.Equal(string(s.Args), `{"Order":7}`)
	is.Equal(*s.Subject, "order 7")
	is.Equal(s.Lane, "money")
	is.Equal(*s.Priority, 0) // set explicitly, so it is not replaced by the default
	is.Equal(s.Delay, time.Hour)
	is.Equal(s.MaxAttempts, 3)
	is.Equal(s.UniqueKey, "7")
	is.Equal(s.UniqueWhile, runner.WhileActive)
	is.Equal(s.IdempotencyKey, "again")
	is.Equal(s.Submitter, "ann")
	is.Equal(s.Pipeline, "billing")
	is.True(s.NeedsApproval)
	is.True(s.AllowUnregistered)
	is.True(s.Ordered)
	is.Equal(s.StartBy, 2*time.Hour)
	is.Equal(len(s.Then), 1)
	is.Equal(s.Then[0].Lane, "slow")
	is.Equal(string(s.Then[0].Args), `{"Order":8}`)
	_, err := fake.Enqueue(t.Context(), invoice{7}, runner.Unique("7", runner.WhilePending).Debounce(time.Second, time.Minute))
	is.NoErr(err)
	is.True(fake.jobs[1].Replace)
	_, err = fake.Enqueue(t.Context(), invoice{7}, runner.Unique("7", runner.WhilePending).Throttle(time.Second))
	is.NoErr(err)
	is.Equal(fake.jobs[2].Throttle, time.Second)
	for field, value := range reflect.ValueOf(s).Fields() {
		if value.IsZero() && reflect.ValueOf(fake.jobs[1]).FieldByIndex(field.Index).IsZero() && reflect.ValueOf(fake.jobs[2]).FieldByIndex(field.Index).IsZero() {
			t.Errorf("%s: set its option above, and read it", field.Name)
		}
	}
}

func TestDescriptionDefaults(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	s, err := runner.Describe(runner.Raw{Name: "mail"})
	is.NoErr(err)
	is.Equal(string(s.Args), "{}")
	s.Kind, s.Args = "", nil
	is.Equal(s, runner.Submission{})
}

func TestDescriptionOfInvalidSubmission(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		args    runner.Args
		options []runner.EnqueueOption
		want    error
	}{
		"no args":        {nil, nil, runner.ErrInvalidArgs},
		"broken JSON":    {runner.Raw{Name: "mail", JSON: json.RawMessage(`{`)}, nil, runner.ErrInvalidArgs},
		"empty key":      {invoice{}, []runner.EnqueueOption{runner.IdempotencyKey("")}, runner.ErrInvalid},
		"priority":       {invoice{}, []runner.EnqueueOption{runner.Priority(200)}, runner.ErrInvalid},
		"step's options": {runner.Chain(invoice{}, runner.With(invoice{}, runner.Delay(time.Second))), nil, runner.ErrInvalid},
	} {
		t.Run(name, func(t *testing.T) {
			is := is.New(t)
			_, err := runner.Describe(c.args, c.options...)
			is.True(errors.Is(err, c.want)) // the same error as from Enqueue
		})
	}
}
