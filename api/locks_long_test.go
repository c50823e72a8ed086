//go:build long

package api_test

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/api"
	"github.com/trapeze-run/trapeze/internal/doctor"
	"github.com/trapeze-run/trapeze/internal/pgtest"
)

// block locks a table as a session called reporting, and waits until another session waits for it. With queue, that session is a migration,
// and the pod waits behind it. block returns the process id of the session that holds the lock.
func block(t *testing.T, pool *pgxpool.Pool, queue bool) int {
	t.Helper()
	is := is.New(t)
	tx, err := pool.Begin(t.Context())
	is.NoErr(err)
	t.Cleanup(func() { _ = tx.Rollback(context.WithoutCancel(t.Context())) })
	_, err = tx.Exec(t.Context(), `set local application_name = 'reporting'`)
	is.NoErr(err)
	_, err = tx.Exec(t.Context(), `lock table trapeze.live in access share mode`)
	is.NoErr(err)
	if !queue {
		_, err = tx.Exec(t.Context(), `lock table trapeze.live`)
		is.NoErr(err)
		go func() { _, _ = pool.Exec(t.Context(), `select from trapeze.live`) }() // waits without a limit, unlike the pod
	} else { // this session's lock blocks a migration, which blocks the pod
		go func() { _, _ = pool.Exec(t.Context(), `alter table trapeze.live add column more int`) }()
	}
	pgtest.Wait(t, "a session waits", func() bool {
		var long bool
		is.NoErr(pool.QueryRow(t.Context(), `select count(*) > 0 from pg_locks where not granted and waitstart < clock_timestamp() - interval '1.1 seconds'
			and relation = 'trapeze.live'::regclass`).Scan(&long))
		return long
	})
	return int(tx.Conn().PgConn().PID())
}

func TestDoctorNamesLockHolder(t *testing.T) {
	t.Parallel()
	for name, queue := range map[string]bool{"lock table": false, "behind a migration": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			is := is.New(t)
			pool := pgtest.Pool(t)
			h := newHostOn(t, pool, api.Options{Authenticate: authenticateAs("ann", "viewer")})
			pid := block(t, pool, queue)
			findings := findingsOf(t, h.send("GET", "/doctor", ""))
			is.Equal(findings[0].Check, "locks")
			is.Equal(findings[0].Status, doctor.Failing)
			is.True(strings.HasPrefix(findings[0].Says, fmt.Sprintf("pid %d (reporting, role ", pid)))
			is.True(strings.Contains(findings[0].Says, "idle in transaction, last statement lock table trapeze.live"))
			is.True(strings.Contains(findings[0].Do, fmt.Sprintf("select pg_terminate_backend(%d)", pid)))
		})
	}
}

// No other session waits for this lock.
func TestDoctorBlockedByUnsharedLock(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	pool := pgtest.Pool(t)
	h := newHostOn(t, pool, api.Options{Authenticate: authenticateAs("ann", "viewer")})
	tx, err := pool.Begin(t.Context())
	is.NoErr(err)
	t.Cleanup(func() { _ = tx.Rollback(context.WithoutCancel(t.Context())) })
	_, err = tx.Exec(t.Context(), `lock table trapeze.maintenance, trapeze.schedules`)
	is.NoErr(err)
	findings := findingsOf(t, h.send("GET", "/doctor", ""))
	is.Equal(findings[0].Check, "locks")
	is.True(strings.HasPrefix(findings[0].Says, fmt.Sprintf("pid %d (", tx.Conn().PgConn().PID())))
	for _, f := range findings[1:] {
		is.True(f.Check != "locks") // the first answer, that no session waits, is replaced
	}
}

func TestRequestBlockedByLock(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	pool := pgtest.Pool(t)
	h := newHostOn(t, pool, api.Options{Authenticate: func(r *http.Request) (api.Principal, error) {
		return api.Principal{Name: "ann", Roles: []string{r.Header.Get("X-Role")}}, nil
	}})
	pid := block(t, pool, false)
	var answers [2]answer
	var sent sync.WaitGroup
	for i, role := range []string{"operator", "submitter"} {
		path, body := "/jobs", `{"kind":"echo"}`
		if role == "operator" {
			path, body = "/jobs/7/cancel", ""
		}
		sent.Go(func() { answers[i] = h.send("POST", path, body, "X-Role", role) })
	}
	sent.Wait()
	for i, a := range answers {
		is.Equal(a.status, http.StatusServiceUnavailable)
		is.True(strings.Contains(a.text, "had no effect"))
		is.Equal(strings.Contains(a.text, fmt.Sprintf("pid %d (reporting, role ", pid)), i == 0) // only the operator may see sessions
	}
}
