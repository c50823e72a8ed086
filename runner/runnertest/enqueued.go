package runnertest

import (
	"context"
	"encoding/json"
	"fmt"
	"reflect"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/trapeze-run/trapeze/internal/store/view"
	"github.com/trapeze-run/trapeze/job"
	"github.com/trapeze-run/trapeze/runner"
)

// Querier is a pgx pool, connection or transaction.
type Querier interface {
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
}

// RequireEnqueued returns the first job whose kind and JSON arguments equal those of args, in any state. If there is none, it fails the
// test immediately. A [runner.Raw] without JSON matches any arguments of its kind. db is a pool or a transaction; a transaction also sees
// its uncommitted jobs. schema is the value of Options.Schema; if empty, it is trapeze.
func RequireEnqueued(t testing.TB, db Querier, schema string, args job.Args) job.Job {
	t.Helper()
	found, wanted := search(t, db, schema, args)
	if len(found) == 0 {
		t.Fatalf("runnertest: no job %s is enqueued%s", wanted, otherJobs(t, db, schema, args.Kind()))
		return job.Job{}
	}
	return found[0]
}

// RequireNotEnqueued fails the test immediately if there is a job whose kind and JSON arguments equal those of args, in any state. The
// parameters are the same as for [RequireEnqueued].
func RequireNotEnqueued(t testing.TB, db Querier, schema string, args job.Args) {
	t.Helper()
	if found, wanted := search(t, db, schema, args); len(found) > 0 {
		t.Fatalf("runnertest: a job %s is enqueued:%s", wanted, lines(found))
	}
}

// RequireEnqueued calls the function [RequireEnqueued] for the harness's committed jobs.
func (h *Harness) RequireEnqueued(args job.Args) job.Job {
	h.t.Helper()
	return RequireEnqueued(h.t, h.host, h.opts.Schema, args)
}

// RequireNotEnqueued calls the function [RequireNotEnqueued] for the harness's committed jobs.
func (h *Harness) RequireNotEnqueued(args job.Args) {
	h.t.Helper()
	RequireNotEnqueued(h.t, h.host, h.opts.Schema, args)
}

// search returns the jobs that match the kind and JSON of args, oldest first, and a description of args for a failure message.
func search(t testing.TB, db Querier, schema string, args job.Args) (found []job.Job, wanted string) {
	t.Helper()
	encoded, err := json.Marshal(args)
	if err != nil {
		t.Fatalf("runnertest: encode the args of %s: %v", args.Kind(), err)
	}
	wanted = fmt.Sprintf("%s with %s", args.Kind(), encoded)
	raw, ok := args.(runner.Raw)
	anything := ok && raw.JSON == nil
	if anything {
		wanted = args.Kind()
	}
	for _, j := range enqueued(t, db, schema, args.Kind()) {
		if anything || reflect.DeepEqual(valueOf(j.Args), valueOf(encoded)) {
			found = append(found, j)
		}
	}
	return found, wanted
}

// otherJobs describes the jobs that were found instead of the missing one: those of the same kind, or else all jobs.
func otherJobs(t testing.TB, db Querier, schema, kind string) string {
	t.Helper()
	if jobs := enqueued(t, db, schema, kind); len(jobs) > 0 {
		return "; jobs of this kind:" + lines(jobs)
	}
	if jobs := enqueued(t, db, schema, ""); len(jobs) > 0 {
		return "; jobs of other kinds:" + lines(jobs)
	}
	return "; there are no jobs"
}

func enqueued(t testing.TB, db Querier, schema, kind string) []job.Job {
	t.Helper()
	jobs, err := view.Enqueued(t.Context(), db, schema, kind)
	if err != nil {
		t.Fatalf("runnertest: list the jobs: %v", err)
	}
	return jobs
}

// lines lists jobs, one per line.
func lines(jobs []job.Job) string {
	var text strings.Builder
	for i, j := range jobs {
		if i == 10 {
			fmt.Fprintf(&text, "\n\t… and %d more", len(jobs)-i)
			break
		}
		fmt.Fprintf(&text, "\n\tjob %d: %s %s, %s", j.ID, j.Kind, j.Args, j.State)
	}
	return text.String()
}

// value decodes JSON, so that a comparison ignores white space and the order of fields.
func valueOf(raw json.RawMessage) (v any) {
	_ = json.Unmarshal(raw, &v) // raw was encoded by this package or read from a json column, so it is valid
	return v
}
