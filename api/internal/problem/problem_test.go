package problem

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"
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

func TestAWaitForALockIsNoLostConnection(t *testing.T) {
	is := is.New(t)
	p := Of(fmt.Errorf("connect to host=db user=admin: %w", &pgconn.PgError{Code: "55P03"}))
	is.Equal(p.Status, http.StatusServiceUnavailable)
	is.Equal(p.Code, "unavailable")
	is.True(strings.Contains(p.Detail, "waited for a lock and had no effect"))
	is.True(!strings.Contains(p.Message+p.Detail, "user=admin"))
}

func TestAServerWithoutFreeConnectionsIsNamed(t *testing.T) {
	is := is.New(t)
	p := Of(fmt.Errorf("connect to host=db user=admin: %w", &pgconn.PgError{Code: "53300"}))
	is.Equal(p.Status, http.StatusServiceUnavailable)
	is.Equal(p.Code, "unavailable")
	is.True(strings.Contains(p.Message, "no free connection"))
	is.True(strings.Contains(p.Detail, "max_connections"))
	is.True(!strings.Contains(p.Message+p.Detail, "user=admin"))
}
