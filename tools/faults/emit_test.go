package faults

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/internal/pgtest"
)

// heldFor limits how long a process may hold an event in memory, and writtenWithin how long writing the event may take on a busy machine.
const (
	heldFor       = 250 * time.Millisecond
	writtenWithin = time.Second
)

// When a process is killed while a handler is emitting events, only the latest events may be lost, because a process may hold events in
// memory for a moment.
func TestEventEmittedBeforePodKill(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	w := newWorld(t, pgtest.URL(t))
	victim := w.start(podConfig{Name: "victim"}, "")
	id := w.submit(emitter{})
	pgtest.Wait(t, "it emits for much longer than it may hold an event", func() bool {
		at := emitTimes(victim)
		return len(at) > 20 && at[len(at)-1].Sub(at[0]) > 2*(heldFor+writtenWithin)
	})
	victim.kill()
	at := emitTimes(victim)
	kept, gaps := 0, 0
	is.NoErr(w.pool.QueryRow(t.Context(), `select count(*), max((fields->>'n')::int) - count(*) from trapeze.job_event
		where event = 'told' and job = $1`, id).Scan(&kept, &gaps))
	is.Equal(gaps, 0) // no event is missing from the middle
	is.True(kept > 0)
	last := at[len(at)-1]
	for n := kept + 1; n <= len(at); n++ {
		if age := last.Sub(at[n-1]); age > heldFor+writtenWithin {
			t.Fatalf("event %d was lost %s after Emit had returned", n, age)
		}
	}
	t.Logf("of %d events the last %d were lost, the oldest of them %s old", len(at), len(at)-kept, last.Sub(at[min(kept, len(at)-1)]))
	w.start(podConfig{Name: "heir"}, "")
	w.finish()
}

// emitTimes returns, for each of the emitter's events, when Emit returned on the given pod.
func emitTimes(p *pod) (at []time.Time) {
	for line := range strings.Lines(p.log.String()) {
		var n int
		var nanos int64
		if _, err := fmt.Sscanf(line, emittedPrefix+"%d %d\n", &n, &nanos); err == nil && n == len(at)+1 {
			at = append(at, time.Unix(0, nanos))
		}
	}
	return at
}
