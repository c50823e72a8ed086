//go:build long

package api_test

import (
	"testing"
	"time"

	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/api"
	"github.com/trapeze-run/trapeze/internal/doctor"
	"github.com/trapeze-run/trapeze/internal/pgtest"
)

// TestDoctorWithLockedTable holds a table lock, as another program's migration might. The doctor command waits at most 30 s for
// a response.
func TestDoctorWithLockedTable(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	pool := pgtest.Pool(t)
	pgtest.AllDays(t, pool)
	h := newHostOn(t, pool, api.Options{})
	tx, err := pool.Begin(t.Context())
	is.NoErr(err)
	defer func() { _ = tx.Rollback(t.Context()) }()
	_, err = tx.Exec(t.Context(), `lock table trapeze.live in access exclusive mode`)
	is.NoErr(err)
	began := time.Now()
	findings := findingsOf(t, h.send("GET", "/doctor", ""))
	is.True(time.Since(began) < 25*time.Second)
	is.True(hasFinding(findings, "lanes", doctor.Warning, "not read: its tables are locked"))
	is.True(hasFinding(findings, "partitions", doctor.Healthy, ""))
	is.NoErr(tx.Rollback(t.Context()))
}
