package host

import (
	"strconv"
	"testing"
	"time"

	"github.com/matryer/is"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/trapeze-run/trapeze/internal/engine"
	"github.com/trapeze-run/trapeze/internal/pod"
	"github.com/trapeze-run/trapeze/internal/telemetry"
)

func TestTheKindsOfWorkersAreMeasuredUpToABound(t *testing.T) {
	is := is.New(t)
	var s Host
	m := telemetry.New()
	for i := range 3 * telemetry.MaxKindLabels {
		s.ran(m, "kind-"+strconv.Itoa(i), 1)
	}
	series := make(chan prometheus.Metric, 4*telemetry.MaxKindLabels)
	m.RunSeconds.Collect(series)
	is.Equal(len(series), telemetry.MaxKindLabels+1) // however many they make up
}

func TestRemoteWorkersOfTheSameKindsShareTheirMarksForAsLongAsThePodPolls(t *testing.T) {
	t.Parallel()
	host := &Host{pod: &pod.Pod{Engine: &engine.Engine{Identity: engine.Identity{Opts: engine.Options{PollEvery: time.Minute}}}}}
	guest := func(id string, kinds ...string) *Session {
		g := &Session{engine: &engine.Engine{Identity: engine.Identity{HandledKinds: kinds, Marks: host.marksFor(kinds), Opts: engine.Options{PollEvery: sessionPollEvery}}}, host: host, opts: Options{ID: id}}
		g.engine.Member = g
		host.add(g)
		return g
	}
	one, same, other := guest("1", "a", "b"), guest("2", "a", "b"), guest("3", "a")
	if one.engine.Marks != same.engine.Marks || one.engine.Marks == other.engine.Marks {
		t.Error("marks are not shared by those of the same kinds, and by those alone")
	}
	if most, _ := one.engine.Member.MarkLimit(); most != time.Minute {
		t.Errorf("they count for %s at most", most)
	}
}
