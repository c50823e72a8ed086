package api

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/internal/store"
	"github.com/trapeze-run/trapeze/job"
)

// counts is an error that matches [job.ErrOutcomeUnknown] but has a different text.
type counts struct{}

func (counts) Error() string        { return "connect to host=db user=admin: refused" }
func (counts) Is(target error) bool { return target == job.ErrOutcomeUnknown }

func TestDriverTextInServerError(t *testing.T) {
	is := is.New(t)
	p := problemOf(counts{})
	is.Equal(p.Status, http.StatusServiceUnavailable)
	is.True(!strings.Contains(p.Message+p.Detail, "user=admin"))
}

func TestLockTimeoutProblem(t *testing.T) {
	is := is.New(t)
	p := problemOf(fmt.Errorf("connect to host=db user=admin: %w", &pgconn.PgError{Code: "55P03"}))
	is.Equal(p.Status, http.StatusServiceUnavailable)
	is.Equal(p.Code, "unavailable")
	is.True(strings.Contains(p.Detail, "waited for a lock and had no effect"))
	is.True(!strings.Contains(p.Message+p.Detail, "user=admin"))
}

func TestTooManyClientsProblem(t *testing.T) {
	is := is.New(t)
	p := problemOf(fmt.Errorf("connect to host=db user=admin: %w", &pgconn.PgError{Code: "53300"}))
	is.Equal(p.Status, http.StatusServiceUnavailable)
	is.Equal(p.Code, "unavailable")
	is.True(strings.Contains(p.Message, "no free connection"))
	is.True(strings.Contains(p.Detail, "max_connections"))
	is.True(!strings.Contains(p.Message+p.Detail, "user=admin"))
}

func TestStatementWithoutConnection(t *testing.T) {
	is := is.New(t)
	pool, err := pgxpool.New(t.Context(), "host=127.0.0.1 port=1 user=admin")
	is.NoErr(err)
	defer pool.Close()
	s, err := store.New(t.Context(), pool, store.Options{Connections: 1})
	is.NoErr(err)
	defer s.Close()
	soon, cancel := context.WithDeadline(t.Context(), time.Now())
	defer cancel()
	p := problemOf(fmt.Errorf("cancel job 1: %w", s.Modest(0).Tx(soon, func(pgx.Tx) error { return nil })))
	is.Equal(p.Status, http.StatusServiceUnavailable)
	is.Equal(p.Code, "unavailable")
	is.True(strings.Contains(p.Detail, "had no effect"))
	is.True(!strings.Contains(p.Message+p.Detail, "user=admin"))
}
