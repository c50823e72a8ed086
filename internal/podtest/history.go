package podtest

import (
	"context"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"pgregory.net/rapid"

	"github.com/trapeze-run/trapeze/internal/inside"
	"github.com/trapeze-run/trapeze/internal/store/view"
	"github.com/trapeze-run/trapeze/job"
	"github.com/trapeze-run/trapeze/runner"
)

// Tester is a test, or one run of a property test.
type Tester interface {
	rapid.TB
	Context() context.Context
}

// overlap limits how long two runs of one subject may appear to overlap, because an event contains the time at which its transaction began,
// and a claim reads the jobs only after that. On a machine that was busy with many tests, the difference was 0.17 s.
const overlap = time.Second

// CheckHistory checks the invariants that hold for every history. Events are numbered without gaps, each starts in the state in which the
// previous one ended, and all transitions are valid. A job ends at most once per epoch, and its fences only increase. The last event
// matches the job's state, and no two jobs with the same (kind, subject) run concurrently.
func CheckHistory(t Tester, pool *pgxpool.Pool, r *runner.Runner) {
	t.Helper()
	events, jobs := snapshot(t, pool, r)
	for _, list := range events {
		slices.SortFunc(list, func(a, b job.Event) int { return *a.EventNo - *b.EventNo })
	}
	type span struct {
		id       int64
		from, to time.Time
	}
	type key struct{ kind, subject string }
	spans := map[key][]span{}
	for _, j := range jobs {
		var (
			state   job.State
			fence   int64
			claimed time.Time
			ends    int
		)
		for i, e := range events[j.ID] {
			if *e.EventNo != i+1 {
				t.Errorf("job %d: event %d is numbered %d", j.ID, i+1, *e.EventNo)
			}
			if e.From != state {
				t.Errorf("job %d: event %d (%s) goes from %q, the job was %q", j.ID, i+1, e.Event, e.From, state)
			}
			if e.From != e.To && !job.CanMove(e.From, e.To) {
				t.Errorf("job %d: event %d (%s) moves from %q to %q", j.ID, i+1, e.Event, e.From, e.To)
			}
			if e.To == job.Running && e.From != job.Running {
				if *e.Fence <= fence {
					t.Errorf("job %d: claimed with fence %d after %d", j.ID, *e.Fence, fence)
				}
				fence, claimed = *e.Fence, e.At
			}
			if e.From == job.Running && e.To != job.Running {
				if *e.Fence != fence {
					t.Errorf("job %d: %s carries fence %d, its claim %d", j.ID, e.Event, *e.Fence, fence)
				}
				k := key{j.Kind, j.Subject}
				spans[k] = append(spans[k], span{j.ID, claimed, e.At})
			}
			if e.To.Terminal() && !e.From.Terminal() {
				ends++
			}
			state = e.To
		}
		if state != j.State || len(events[j.ID]) != j.EventNo {
			t.Errorf("job %d is %s at event %d; its history ends with %s at %d", j.ID, j.State, j.EventNo, state, len(events[j.ID]))
		}
		if fence != j.Fence {
			t.Errorf("job %d has fence %d, its last claim %d", j.ID, j.Fence, fence)
		}
		if ends > j.Epoch {
			t.Errorf("job %d ended %d times in %d epochs", j.ID, ends, j.Epoch)
		}
	}
	for k, list := range spans {
		if k.subject == "" {
			continue
		}
		for i, a := range list {
			for _, b := range list[i+1:] {
				if a.to.Sub(b.from) > overlap && b.to.Sub(a.from) > overlap {
					t.Errorf("jobs %d and %d of %v ran at the same time: %v and %v", a.id, b.id, k, a, b)
				}
			}
		}
	}
}

// snapshot reads all jobs and their events in one snapshot, because jobs may still be running.
func snapshot(t Tester, pool *pgxpool.Pool, r *runner.Runner) (events map[int64][]job.Event, jobs []job.JobRow) {
	t.Helper()
	events = map[int64][]job.Event{}
	s := inside.Of(r).Store
	err := pgx.BeginTxFunc(t.Context(), pool, pgx.TxOptions{IsoLevel: pgx.RepeatableRead}, func(tx pgx.Tx) error {
		err := view.ExportEvents(t.Context(), s, tx, func(e job.Event) error {
			if e.Job != nil {
				events[*e.Job] = append(events[*e.Job], e)
			}
			return nil
		})
		if err != nil {
			return err
		}
		return view.ExportJobs(t.Context(), s, tx, func(j job.JobRow) error {
			jobs = append(jobs, j)
			return nil
		})
	})
	if err != nil {
		t.Fatal(err)
	}
	return events, jobs
}
