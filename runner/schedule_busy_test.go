package runner_test

import (
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/internal/pgtest"
	"github.com/trapeze-run/trapeze/runner"
)

// Each trigger needs only one connection, so concurrent triggers cannot deadlock on an exhausted pool.
func TestConcurrentScheduleTriggersSmallPool(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	r := newRunner(t, pgtest.Pool(t), runner.Options{}, map[string]handler{"k": succeed})
	names := []string{"a", "b", "c", "d", "e", "f", "g", "h"}
	for _, name := range names {
		_, err := r.Admin("ann").SetSchedule(t.Context(), name, every("@daily"))
		is.NoErr(err)
	}
	began := time.Now()
	errs := make([]error, len(names))
	var all sync.WaitGroup
	for i, name := range names {
		all.Go(func() { _, errs[i] = r.Admin("ann").TriggerSchedule(t.Context(), name, nil) })
	}
	all.Wait()
	is.NoErr(errors.Join(errs...))
	is.True(time.Since(began) < 5*time.Second)
}
