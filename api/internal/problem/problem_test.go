package problem

import (
	"net/http"
	"strings"
	"testing"

	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/job"
)

// counts is an error that matches [job.ErrOutcomeUnknown] but has a different text.
type counts struct{}

func (counts) Error() string        { return "connect to host=db user=admin: refused" }
func (counts) Is(target error) bool { return target == job.ErrOutcomeUnknown }

func TestAServerErrorDoesNotShowTheTextOfTheDriver(t *testing.T) {
	is := is.New(t)
	p := Of(counts{})
	is.Equal(p.Status, http.StatusServiceUnavailable)
	is.True(!strings.Contains(p.Message+p.Detail, "user=admin"))
}
