package faults

import (
	"encoding/json"
	"fmt"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/internal/pgtest"
	"github.com/trapeze-run/trapeze/job"
)

// schedule creates a schedule that submits short jobs.
func (w *world) schedule(name, expression string) {
	w.t.Helper()
	kind, args := plain{}.Kind(), json.RawMessage(`{"Millis":1}`)
	if _, err := w.client.Admin().SetSchedule(w.t.Context(), name, job.ScheduleChange{Expression: &expression, Kind: &kind, Args: &args}, client); err != nil {
		w.t.Fatal(err)
	}
}

// fires returns the number of occurrences that have been processed.
func (w *world) fires() int { return read[int](w, "select count(*) from trapeze.schedule_fires") }

// checkFires checks that every schedule has fired at each multiple of its interval, in seconds, since it was created. There must be one job
// per occurrence and no other jobs.
func (w *world) checkFires(every int64) {
	w.t.Helper()
	is := is.New(w.t)
	rows, err := w.pool.Query(w.t.Context(), `select f.schedule, f.fire_at, s.anchor from trapeze.schedule_fires f
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
	is.Equal(read[int](w, `select count(distinct j.id) from trapeze.schedule_fires f join trapeze.jobs j on j.id = f.job_id and j.kind = 'plain'`), len(got))
	is.Equal(read[int](w, `select count(*) from trapeze.jobs`), len(got))
	is.Equal(read[int](w, `select count(*) from trapeze.job_events where event = 'schedule.fired'`), len(got))
}

// stopFires stops all schedules and waits until their jobs are finished.
func (w *world) stopFires() {
	w.t.Helper()
	if _, err := w.pool.Exec(w.t.Context(), `update trapeze.schedules set kind = 'nobody''s'`); err != nil {
		w.t.Fatal(err)
	}
	w.settle()
}

// Five processes share the same schedules while one is killed and others are frozen for a while. Every occurrence must still fire exactly
// once.
func TestFiveProcessesFireOnceWhileOneIsKilledAndOneFrozen(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	const schedules = 6
	w := newWorld(t, pgtest.URL(t))
	var pods []*pod
	for i := range 5 {
		pods = append(pods, w.start(podConfig{Name: fmt.Sprint("pod-", i)}, ""))
	}
	for i := range schedules {
		w.schedule(fmt.Sprint("s", i), "*/2 * * * * *")
	}
	after := func(rounds int) {
		want := schedules * rounds
		pgtest.Wait(t, fmt.Sprint(want, " fires"), func() bool { return w.fires() >= want })
	}
	after(1)
	pods[0].kill()
	pods[1].signal(syscall.SIGSTOP)
	after(4)
	pods[1].signal(syscall.SIGCONT) // its timer expired long ago
	pods[2].signal(syscall.SIGSTOP)
	after(6)
	pods[2].signal(syscall.SIGCONT)
	after(7)
	w.stopFires()
	w.checkFires(2)
	is.True(read[float64](w, `select min(extract(epoch from decided_at - fire_at))::float8 from trapeze.schedule_fires`) >= 0) // no occurrence fired early
}
