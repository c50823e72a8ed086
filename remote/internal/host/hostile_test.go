package host_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/internal/engine"
	"github.com/trapeze-run/trapeze/internal/pgtest"
	"github.com/trapeze-run/trapeze/internal/podtest"
	"github.com/trapeze-run/trapeze/job"
	"github.com/trapeze-run/trapeze/remote/internal/host"
	"github.com/trapeze-run/trapeze/runner"
)

func TestWorkerIDSpelling(t *testing.T) {
	is := is.New(t)
	pool := pgtest.Pool(t)
	r, other := podtest.Start(t, pool, runner.Options{}, noKinds), podtest.Start(t, pool, runner.Options{}, noKinds)
	w := newFar()
	w.connect(t, r, 1, "far")
	foreign(t, r, podtest.RawArgs("far"))
	a := w.takes(t, r)
	for _, id := range []string{strings.ToUpper(w.id), "{" + w.id + "}", "urn:uuid:" + w.id, strings.ReplaceAll(w.id, "-", ""), w.id + "\x00", "", strings.Repeat("x", 1<<20)} {
		for _, to := range []*runner.Runner{r, other} {
			_, err := hostOf(to).Heartbeat(t.Context(), id, owner, host.Beat{Running: []host.Listed{{Claim: claimOf(a)}}})
			is.True(errors.Is(err, job.ErrInvalid) && len(err.Error()) < 500) // the error does not quote the whole value
			_, err = hostOf(to).Report(t.Context(), id, owner, host.Report{Claim: claimOf(a)})
			is.True(errors.Is(err, job.ErrInvalid))
			_, err = hostOf(to).Receive(t.Context(), host.Options{ID: id, Owner: owner, Kinds: []engine.RemoteKind{{Name: "far"}}, Slots: 1})
			is.True(errors.Is(err, job.ErrInvalid) && len(err.Error()) < 500)
		}
	}
	_, err := w.reports(t, r, a, nil, nil)
	is.NoErr(err)
}

func TestProgressThroughOtherPod(t *testing.T) {
	is := is.New(t)
	pool := pgtest.Pool(t)
	serves, other := podtest.Start(t, pool, runner.Options{}, noKinds), podtest.Start(t, pool, runner.Options{}, noKinds)
	w := newFar()
	w.connect(t, serves, 1, "far")
	id := foreign(t, serves, podtest.RawArgs("far"))
	a := w.takes(t, serves)
	for _, text := range []string{"a\x00b", strings.Repeat("é", 1<<20)} {
		_, err := hostOf(other).Heartbeat(t.Context(), w.id, owner, host.Beat{Running: []host.Listed{{Claim: claimOf(a), Progress: &job.Progress{Message: &text}}}})
		is.NoErr(err)
		var kept string
		is.NoErr(pool.QueryRow(t.Context(), `select message from trapeze.job_progress where id = $1`, id).Scan(&kept))
		is.True(len(kept) <= 500 && kept[:1] == text[:1]) // truncated to the maximum length
	}
}

func TestMetricsOfUnusedWorkerKinds(t *testing.T) {
	is := is.New(t)
	r := podtest.Start(t, pgtest.Pool(t), runner.Options{}, noKinds)
	w := newFar()
	w.connect(t, r, 1, "far", "never", "nor-this")
	foreign(t, r, podtest.RawArgs("far"))
	_, err := w.reports(t, r, w.takes(t, r), nil, nil)
	is.NoErr(err)
	kinds := map[string]float64{}
	podtest.Scraped(t, r, func(name string, labels []string, value float64) {
		if name == "trapeze_run_seconds" {
			kinds[labels[0]] = value
		}
	})
	is.Equal(kinds["far"], 1.0) // the run is counted
	is.Equal(len(kinds), 2)     // only the worker's kind and the pod's own kind have labels
}
