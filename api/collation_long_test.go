//go:build long

package api_test

import (
	"strings"
	"testing"

	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/api"
	"github.com/trapeze-run/trapeze/internal/doctor"
	"github.com/trapeze-run/trapeze/internal/pgtest"
)

// An upgrade of the operating system can change the order of texts. PostgreSQL 15 and later record the version of the collation.
func TestDoctorNamesAChangedCollation(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	if pgtest.QueryOne[int](t, pgtest.Pool(t), `select current_setting('server_version_num')::int`) < 150000 {
		t.Skip("PostgreSQL 14 does not record the version of a database's collation: run this test with PGBIN of version 15 or newer")
	}
	pool := pgtest.Connect(t, pgtest.URLWith(t, "locale_provider icu icu_locale 'en-US' locale 'C'"))
	h := newHostOn(t, pool, api.Options{Authenticate: authenticateAs("ann", "viewer")})
	of := func() (found []doctor.Finding) {
		for _, f := range findingsOf(t, h.send("GET", "/doctor", "")) {
			if f.Check == "collation" {
				found = append(found, f)
			}
		}
		return found
	}
	is.Equal(len(of()), 0)
	pgtest.Exec(t, pool, `update pg_database set datcollversion = '1.0' where datname = current_database()`)
	found := of()
	is.Equal(len(found), 1)
	is.Equal(found[0].Status, doctor.Warning)
	is.True(strings.Contains(found[0].Says, "from version 1.0 to "))
	is.True(strings.Contains(found[0].Do, "refresh collation version"))
	pgtest.Exec(t, pool, "alter database "+pgtest.QueryOne[string](t, pool, `select quote_ident(current_database())`)+" refresh collation version")
	is.Equal(len(of()), 0)
}
