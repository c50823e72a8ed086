package telemetry

import (
	"errors"
	"testing"

	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/job"
)

func TestUnrecordedSpan(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	const position = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
	var s Span
	is.True(!s.Recorded())
	s.Event("job.retried")
	s.Error(job.ReasonError, errors.New("no"))
	s.State(job.Failed)
	s.Link(position)
	s.End()
	is.Equal(s.Traceparent(position), position)
}
