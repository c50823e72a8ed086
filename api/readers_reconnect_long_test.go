//go:build long

package api_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/api"
	"github.com/trapeze-run/trapeze/internal/pgtest"
	"github.com/trapeze-run/trapeze/job"
	"github.com/trapeze-run/trapeze/runner"
)

func TestReconnectingReaders(t *testing.T) {
	t.Parallel()
	readEverything(t, 40, 150, 2*time.Second)
}

// readEverything runs readers on two pods while the test writes events, rate of them per second. For half of the test, a transaction that
// has written one event stays open. Each reader disconnects at random and resumes on either pod from its latest cursor.
func readEverything(t *testing.T, readers, rate int, lasts time.Duration) {
	is := is.New(t)
	seed := uint64(time.Now().UnixNano())
	pool := pgtest.Pool(t)
	pods := []*host{newHostOn(t, pool, api.Options{}), newHostOn(t, pool, api.Options{})}
	noisy := pods[0].submit(`{"kind":"noisy"}`)
	pods[0].until(noisy, job.Running)
	everything := "/events/stream?after=0"
	paths := []string{everything, everything, "/jobs/" + noisy + "/stream", "/pipelines/" + noisy + "/stream"}
	ended := make(chan struct{}) // closed when all events are written and total is complete
	total := map[string]int{}
	all := make([]*reader, readers)
	var reading sync.WaitGroup
	for i := range all {
		r := &reader{path: paths[i%len(paths)], pods: pods, random: rand.New(rand.NewPCG(seed, uint64(i))), got: map[string]bool{}}
		all[i] = r
		reading.Go(func() { r.err = r.run(ended, total) })
	}
	most := writeEvents(t, pool, pods, rate, lasts)
	pods[1].send("POST", "/jobs/"+noisy+"/cancel", "")
	pgtest.Wait(t, "all jobs have ended", func() bool { return pgtest.QueryOne[int](t, pool, `select count(*) from trapeze.live`) == 0 })
	total[everything] = pgtest.QueryOne[int](t, pool, `select count(*) from trapeze.job_event`)
	for _, path := range paths[2:] {
		total[path] = pgtest.QueryOne[int](t, pool, `select count(*) from trapeze.job_event where job = `+noisy)
	}
	close(ended)
	reading.Wait()
	opened := 0
	for i, r := range all {
		opened += r.opened
		if r.err != nil {
			t.Errorf("seed %d, reader %d of %s, with %d of %d events: %v", seed, i, r.path, len(r.got), total[r.path], r.err)
		}
	}
	t.Logf("%d readers opened %d streams of up to %d events; the pods had %d connections at most", readers, opened, total[everything], most)
	is.True(most < 40) // only the pools of two pods and of this test, regardless of the number of readers
}

// writeEvents writes events, rate of them per second. For half of the test, a transaction that has written one event stays open.
// writeEvents returns the highest number of connections seen.
func writeEvents(t *testing.T, pool *pgxpool.Pool, pods []*host, rate int, lasts time.Duration) (most int) {
	t.Helper()
	is := is.New(t)
	parked := pods[0].submit(`{"kind":"echo","delay":3600}`)
	var tx pgx.Tx
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for began := time.Now(); time.Since(began) < lasts; <-tick.C {
		_, err := pods[rand.IntN(2)].EnqueueMany(t.Context(), many("echo", max(1, rate/30))) // each job has three events
		is.NoErr(err)
		most = max(most, pgtest.QueryOne[int](t, pool, `select count(*) from pg_stat_activity where datname = current_database()`))
		if tx == nil && time.Since(began) > lasts/4 {
			tx, err = pool.Begin(t.Context())
			is.NoErr(err)
			_, err = tx.Exec(t.Context(), lateSQL, parked)
			is.NoErr(err)
		}
		if tx != nil && time.Since(began) > 3*lasts/4 {
			if err := tx.Commit(t.Context()); !errors.Is(err, pgx.ErrTxClosed) {
				is.NoErr(err)
			}
		}
	}
	if err := tx.Commit(t.Context()); !errors.Is(err, pgx.ErrTxClosed) {
		is.NoErr(err)
	}
	return most
}

// lateSQL writes an event for a parked job.
const lateSQL = `with u as (update trapeze.parked set event_no = event_no + 1 where id = $1 returning id, event_no)
	insert into trapeze.job_events (job, event_no, from_state, to_state, event) select id, event_no, 'pending', 'pending', 'late' from u`

// reader reads one stream until it has received all events.
type reader struct {
	path   string
	pods   []*host
	random *rand.Rand

	last   string          // its latest cursor
	got    map[string]bool // the cursors of all events received
	at     [3]int          // the position of the latest event
	opened int
	err    error
}

// run reads until all events have been written and received.
func (r *reader) run(ended chan struct{}, total map[string]int) error {
	for deadline := time.Now().Add(5 * time.Minute); time.Now().Before(deadline); {
		if err := r.read(time.Duration(50+r.random.IntN(1500)) * time.Millisecond); err != nil {
			return err
		}
		select {
		case <-ended:
			if len(r.got) >= total[r.path] {
				return r.right(total[r.path])
			}
		default:
		}
	}
	return errors.New("it did not come to the end")
}

func (r *reader) right(total int) error {
	if len(r.got) != total {
		return fmt.Errorf("it read %d events of %d", len(r.got), total)
	}
	return nil
}

// read reads from one pod for a limited time.
func (r *reader) read(lasts time.Duration) error {
	var header []string
	if r.last != "" {
		header = []string{"Last-Event-ID", r.last}
	}
	s, err := r.pods[r.random.IntN(len(r.pods))].watching(r.path, header...)
	if err != nil {
		return err
	}
	defer s.leave()
	r.opened++
	if s.status != http.StatusOK {
		return fmt.Errorf("status %d", s.status)
	}
	leaving := time.AfterFunc(lasts, s.leave)
	defer leaving.Stop()
	for {
		f, err := s.next()
		if err != nil {
			return nil // the reader left, or the server ended the stream
		}
		switch f.event {
		case "end", "progress":
			continue
		case "reset":
			return fmt.Errorf("it was reset: %s", f.data)
		case "snapshot":
			r.last = f.id
			continue
		}
		if err := r.take(f); err != nil {
			return err
		}
	}
}

// take checks that an event follows the events before it.
func (r *reader) take(f frame) error {
	_, rest, ok := strings.Cut(f.data, `{"cursor":"`)
	cursor, _, found := strings.Cut(rest, `"`)
	if !ok || !found {
		return fmt.Errorf("no event: %s", f.data)
	}
	var at [3]int
	for i, part := range strings.Split(cursor, ".") {
		at[i], _ = strconv.Atoi(part)
	}
	if !strings.HasPrefix(r.path, "/events") {
		at[0] = 0 // a job's stream is ordered by event number only
		if at[2] != r.at[2]+1 {
			return fmt.Errorf("event %s follows number %d", cursor, r.at[2])
		}
	}
	if at[0] < r.at[0] || at[0] == r.at[0] && (at[1] < r.at[1] || at[1] == r.at[1] && at[2] <= r.at[2]) {
		return fmt.Errorf("event %s comes after %v", cursor, r.at)
	}
	if r.got[cursor] {
		return fmt.Errorf("event %s comes twice", cursor)
	}
	r.got[cursor], r.at, r.last = true, at, f.id
	return nil
}

// many returns n jobs of one kind without arguments.
func many(kind string, n int) []job.Args {
	list := make([]job.Args, n)
	for i := range list {
		list[i] = runner.Raw{Name: kind}
	}
	return list
}
