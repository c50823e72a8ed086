package checker

import (
	"testing"
	"time"

	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/tools/torture/history"
)

func TestBusyMachineStalls(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	began := time.Now()
	at := func(seconds float64) time.Time { return began.Add(time.Duration(seconds * float64(time.Second))) }
	run := &history.Run{Samples: []history.Sample{
		{T: at(0)},
		{T: at(0.5), Took: 1500 * time.Millisecond},
		{T: at(1.2), Commit: &history.Commit{T: at(0.1), Took: 3 * time.Second}},
		{T: at(9), Took: time.Millisecond, Commit: &history.Commit{T: at(8), Took: time.Millisecond}},
	}}
	is.Equal(stallsOf(run), []span{{at(0.5), at(2)}, {at(0.1), at(3.1)}, {at(1.2), at(9)}}) // a slow sample, a slow commit, and a gap
}

func TestPodWithoutProcessorTime(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	began := time.Now()
	var run history.Run
	look := func(second int, pid int, starved time.Duration) {
		run.Samples = append(run.Samples, history.Sample{T: began.Add(time.Duration(second) * time.Second),
			Pods: []history.PodNumbers{{Pod: "pod1", PID: pid, Starved: starved}}})
	}
	look(0, 7, 90*time.Second) // waiting before the first sample does not count
	look(1, 7, 90*time.Second+100*time.Millisecond)
	look(2, 7, 92*time.Second)
	look(3, 8, 99*time.Second) // a different process in the same place
	look(4, 8, 99*time.Second)
	is.Equal(starvedPods(&run), map[string][]span{"pod1": {{began.Add(time.Second), began.Add(2 * time.Second)}}})
}
