//go:build long

package runner_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/internal/pgtest"
	"github.com/trapeze-run/trapeze/job"
	"github.com/trapeze-run/trapeze/runner"
)

func TestUnstorableErrorText(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	r := start(t, pgtest.Pool(t), runner.Options{}, map[string]handler{
		"fail":  failWith(errors.New("a\x00b\xff\xfec\xed\xa0\x80d" + strings.Repeat("é", 1<<19))),
		"panic": func(context.Context, *raw) (*runner.Outcome, error) { panic("p\x00\xff" + strings.Repeat("x", 1<<20)) },
		"later": func(context.Context, *raw) (*runner.Outcome, error) {
			return runner.Snooze(time.Hour, "l\x00\xff"), nil
		},
	})
	for _, kind := range []string{"fail", "panic"} {
		j := waitEnded(t, r, enqueue(t, r, rawArgs(kind)))
		is.Equal(j.State, job.Failed)
		is.True(utf8.ValidString(message(j)) && len(message(j)) <= job.MaxErrorBytes && len(message(j)) > 1000) // the error is truncated to valid text
	}
	later := enqueue(t, r, rawArgs("later"))
	pgtest.Wait(t, "the wait is recorded", func() bool { return slices.Contains(eventsOf(t, r, later), "job.snoozed") })
}
