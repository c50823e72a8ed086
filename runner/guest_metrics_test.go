package runner_test

import (
	"testing"

	"github.com/matryer/is"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/trapeze-run/trapeze/internal/pgtest"
	"github.com/trapeze-run/trapeze/runner"
)

// slotsOf collects the slots of each lane, as lane/state.
func slotsOf(t *testing.T, r *runner.Runner) map[string]float64 {
	t.Helper()
	registry := prometheus.NewRegistry()
	registry.MustRegister(r.Metrics())
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]float64{}
	for _, f := range families {
		if f.GetName() != "trapeze_lane_slots" {
			continue
		}
		for _, m := range f.GetMetric() {
			all[m.GetLabel()[0].GetValue()+"/"+m.GetLabel()[1].GetValue()] = m.GetGauge().GetValue()
		}
	}
	return all
}

func TestTheSlotsOfRemoteWorkersCountAsThoseOfThePodThatServesThem(t *testing.T) {
	is := is.New(t)
	pool := pgtest.Pool(t)
	exec(t, pool, `insert into trapeze.lanes (name, slots) values ('narrow', 4)`)
	r := start(t, pool, runner.Options{Slots: 2}, noKinds)
	w := newFar()
	w.connect(t, r, 3, "far")
	w.keepBeating(t, r)
	foreign(t, r, of("far"), runner.Lane("narrow"))
	w.takes(t, r)
	slots := slotsOf(t, r)
	is.Equal(slots["narrow/used"], 1.0)
	is.Equal(slots["narrow/limit"], 4.0)  // no more than the lane has
	is.Equal(slots["default/limit"], 5.0) // two of the pod and three of the worker
}
