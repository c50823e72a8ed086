package pgtest

import (
	"os"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/matryer/is"
)

func TestMain(m *testing.M) { Main(m) }

func TestSeparateTestDatabases(t *testing.T) {
	is := is.New(t)
	a, b := Pool(t), Pool(t)
	_, err := a.Exec(t.Context(), "CREATE TABLE mine (n int)")
	is.NoErr(err)
	_, err = b.Exec(t.Context(), "CREATE TABLE mine (n int)")
	is.NoErr(err) // the other database does not have this table
}

func TestAPoolIsMigrated(t *testing.T) {
	is := is.New(t)
	var tables int
	err := Pool(t).QueryRow(t.Context(), "SELECT count(*) FROM pg_tables WHERE schemaname = $1", Schema).Scan(&tables)
	is.NoErr(err)
	is.True(tables > 1)
}

func TestEmptyTestDatabase(t *testing.T) {
	is := is.New(t)
	url := EmptyURL(t)
	pool := Connect(t, url)
	count := "SELECT count(*) FROM pg_namespace WHERE nspname = $1"
	var schemas int
	is.NoErr(pool.QueryRow(t.Context(), count, Schema).Scan(&schemas))
	is.Equal(schemas, 0)
	Migrate(t, url)
	is.NoErr(pool.QueryRow(t.Context(), count, Schema).Scan(&schemas))
	is.Equal(schemas, 1)
}

func TestDatabasesEndWithTheirTest(t *testing.T) {
	is := is.New(t)
	var names []string
	var mu sync.Mutex
	t.Run("some tests", func(t *testing.T) {
		for range 8 {
			t.Run("", func(t *testing.T) {
				t.Parallel()
				var name string
				if err := Pool(t).QueryRow(t.Context(), "SELECT current_database()").Scan(&name); err != nil {
					t.Error(err)
				}
				mu.Lock()
				defer mu.Unlock()
				names = append(names, name)
			})
		}
	})
	is.Equal(len(names), 8)
	var left int
	err := Pool(t).QueryRow(t.Context(), "SELECT count(*) FROM pg_database WHERE datname = ANY($1)", names).Scan(&left)
	is.NoErr(err)
	is.Equal(left, 0)
}

func TestPrivateServerRestart(t *testing.T) {
	is := is.New(t)
	s := Server(t, "work_mem", "5MB")
	conn, err := pgx.Connect(t.Context(), s.URL())
	is.NoErr(err)
	defer conn.Close(t.Context())
	is.NoErr(s.Restart(t.Context(), "immediate"))
	var workMem string
	is.True(conn.QueryRow(t.Context(), "SHOW work_mem").Scan(&workMem) != nil) // the session ended
	Migrate(t, s.URL())
	is.NoErr(Connect(t, s.URL()).QueryRow(t.Context(), "SHOW work_mem").Scan(&workMem))
	is.Equal(workMem, "5MB")
}

func TestWaitForCondition(t *testing.T) {
	is := is.New(t)
	calls := 0
	Wait(t, "three calls", func() bool { calls++; return calls == 3 })
	is.Equal(calls, 3)
}

func TestOtherDatabasesUntouched(t *testing.T) {
	is := is.New(t)
	var others int
	err := Pool(t).QueryRow(t.Context(), `SELECT count(*) FROM pg_database
		WHERE datname NOT LIKE 'trapeze\_test\_%' AND datname <> ALL('{template0,template1}')`).Scan(&others)
	is.NoErr(err)
	if os.Getenv("DATABASE_URL") == "" {
		is.Equal(others, 1) // the database postgres
	}
}

func TestAbandonedDatabasesAreDropped(t *testing.T) {
	is := is.New(t)
	var s source
	is.NoErr(s.connect(Server(t).URL()))
	defer s.admin.Close()
	for _, name := range []string{"trapeze_test_1_abcdefgh_1", "trapeze_test_1_abcdefgh_2", "trapeze_test_1_abcdefgh_template", "trapeze_test_mine"} {
		is.NoErr(s.exec(t.Context(), "create database "+name))
	}
	used := Connect(t, WithDatabase(s.url, "trapeze_test_1_abcdefgh_2"))
	is.NoErr(used.Ping(t.Context()))
	left := func(age time.Duration) (names []string) {
		is.NoErr(s.sweep(t.Context(), age))
		is.NoErr(used.QueryRow(t.Context(), "select array_agg(datname::text order by datname) from pg_database where datname like 'trapeze_test%'").Scan(&names))
		return names
	}
	is.Equal(len(left(time.Hour)), 4) // all are too young to be dropped
	is.Equal(left(0), []string{"trapeze_test_1_abcdefgh_2", "trapeze_test_mine"})
}
