//go:build long

package faults

import (
	"fmt"
	"syscall"
	"testing"

	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/internal/pgtest"
)

// Five processes share the same schedules. One of them is killed and others are frozen for a while, but every occurrence must fire exactly
// once.
func TestFiveProcessesShareSchedules(t *testing.T) {
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
	pods[1].signal(syscall.SIGCONT) // this pod's timer expired long ago
	pods[2].signal(syscall.SIGSTOP)
	after(6)
	pods[2].signal(syscall.SIGCONT)
	after(7)
	w.stopOccurrences()
	w.checkOccurrences(2)
	is.True(read[float64](w, `select min(extract(epoch from decided_at - fire_at))::float8 from trapeze.schedule_occurrences`) >= 0) // no occurrence fired early
}
