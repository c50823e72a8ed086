package runner

import (
	"strconv"
	"testing"

	"github.com/matryer/is"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/trapeze-run/trapeze/internal/engine"
	"github.com/trapeze-run/trapeze/internal/telemetry"
)

func TestTheKindsOfWorkersAreMeasuredUpToABound(t *testing.T) {
	is := is.New(t)
	var s Host
	m := telemetry.New()
	for i := range 3 * engine.MaxKindLabels {
		s.ran(m, "kind-"+strconv.Itoa(i), 1)
	}
	series := make(chan prometheus.Metric, 4*engine.MaxKindLabels)
	m.RunSeconds.Collect(series)
	is.Equal(len(series), engine.MaxKindLabels+1) // however many they make up
}
