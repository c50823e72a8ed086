//go:build failpoints || long

package faults

import (
	"encoding/json"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/job"
)

// schedule creates a schedule that submits short jobs.
func (w *world) schedule(name, expression string) {
	w.t.Helper()
	kind, args := plain{}.Kind(), json.RawMessage(`{"Millis":1}`)
	if _, err := w.client.Admin(client).SetSchedule(w.t.Context(), name, job.ScheduleChange{Expression: &expression, Kind: &kind, Args: &args}); err != nil {
		w.t.Fatal(err)
	}
}

// fires returns the number of occurrences that have been processed.
func (w *world) fires() int { return read[int](w, "select count(*) from trapeze.schedule_occurrences") }

// checkOccurrences checks that every schedule has fired at each multiple of its interval, in seconds, since it was created. There must be exactly
// one job per occurrence and no other jobs.
func (w *world) checkOccurrences(every int64) {
	w.t.Helper()
	is := is.New(w.t)
	rows, err := w.pool.Query(w.t.Context(), `select f.schedule, f.fire_at, s.anchor from trapeze.schedule_occurrences f
		join trapeze.schedules s on s.name = f.schedule where f.outcome = 'fired' and f.missed = 0 order by 1, 2`)
	is.NoErr(err)
	type fire struct {
		schedule string
		at       time.Time
	}
	var got, want []fire
	var name string
	var at, anchor time.Time
	next := int64(0)
	_, err = pgx.ForEachRow(rows, []any{&name, &at, &anchor}, func() error {
		if len(got) == 0 || got[len(got)-1].schedule != name {
			next = anchor.Unix() - anchor.Unix()%every
		}
		next += every
		got, want = append(got, fire{name, at.UTC()}), append(want, fire{name, time.Unix(next, 0).UTC()})
		return nil
	})
	is.NoErr(err)
	is.Equal(got, want)
	is.Equal(len(got), w.fires()) // no occurrence was missed or refused
	is.Equal(read[int](w, `select count(distinct j.id) from trapeze.schedule_occurrences f join trapeze.jobs j on j.id = f.job_id and j.kind = 'plain'`), len(got))
	is.Equal(read[int](w, `select count(*) from trapeze.jobs`), len(got))
	is.Equal(read[int](w, `select count(*) from trapeze.job_events where event = 'schedule.fired'`), len(got))
}

// stopOccurrences stops all schedules and waits until their jobs have finished.
func (w *world) stopOccurrences() {
	w.t.Helper()
	if _, err := w.pool.Exec(w.t.Context(), `update trapeze.schedules set kind = 'nobody''s'`); err != nil {
		w.t.Fatal(err)
	}
	w.settle()
}
