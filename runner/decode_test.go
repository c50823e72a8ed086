package runner_test

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"testing"

	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/internal/pgtest"
	"github.com/trapeze-run/trapeze/job"
	"github.com/trapeze-run/trapeze/runner"
)

type account struct {
	PIN string  `json:"pin" secret:"true"`
	Key keyText `json:"key" secret:"true"`
	Age int     `json:"age"`
	I8  int8    `json:"i8"`
	U   uint    `json:"u"`
	U16 []struct {
		N uint16
	} `json:"u16"`
	F32 float32 `json:"f32"`
}

func (account) Kind() string { return "account" }

// keyText is a type whose decoding error quotes the input, as time.Parse's error does.
type keyText string

func (*keyText) UnmarshalJSON(raw []byte) error { return fmt.Errorf("no key: %s", raw) }

func TestUndecodableArguments(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	var log strings.Builder
	r, err := runner.New(pgtest.Pool(t), runner.Options{MaxAttempts: 5, Logger: slog.New(slog.NewTextHandler(&log, nil))})
	is.NoErr(err)
	handled := false
	runner.Handle(r, func(context.Context, *runner.Job[account]) (*runner.Outcome, error) { handled = true; return nil, nil })
	stop := run(t, r)
	for args, says := range map[string]string{
		`{"pin":471108151}`:         "field pin: want string, have number",
		`{"key":"471108151"}`:       "the type's decoder returned",
		`{"age":471108151.5}`:       "field age: want int, a whole number from -9223372036854775808 to 9223372036854775807, have another number",
		`{"i8":471108151}`:          "field i8: want int8, a whole number from -128 to 127, have another number",
		`{"u":-471108151}`:          "field u: want uint, a whole number from 0 to 18446744073709551615, have another number",
		`{"u16":[{"N":471108151}]}`: "N: want uint16, a whole number from 0 to 65535, have another number",
		`{"f32":471108151e99}`:      "field f32: want float32, a number of at most 32 bits, have another number",
		`"471108151"`:               "have string",
		`[471108151]`:               "have array",
	} {
		made, err := r.Enqueue(t.Context(), runner.Raw{Name: "account", JSON: []byte(args)})
		is.NoErr(err)
		j := waitEnded(t, r, made.ID)
		is.Equal(j.State, job.Failed)
		is.Equal(*j.Reason, job.ReasonInvalidArgs)
		is.Equal(j.Attempt, 1) // the job was not retried, because decoding its arguments would fail again
		is.True(strings.Contains(*j.Error, says))
		is.True(!strings.Contains(*j.Error, "471108151"))
	}
	stop()
	is.True(!handled)
	is.True(!strings.Contains(log.String(), "471108151"))
}
