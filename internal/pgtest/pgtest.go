// Package pgtest gives tests a real PostgreSQL. Each test gets its own database, which is dropped when the test ends:
//
//	func TestMain(m *testing.M) { pgtest.Main(m) }
//
//	func TestSomething(t *testing.T) {
//		pool := pgtest.Pool(t) // migrated and empty
//	}
//
// The package uses the server at DATABASE_URL if the user there is a superuser; it must be PostgreSQL 14 or newer. Otherwise it uses the
// server that the command pgtest/with has started for all packages, if any (see [ServerVar]), or starts one on first use and stops it on
// exit. pgtest never touches databases that it did not create.
//
// A database is a copy of a migrated template with 600 files. On a 2-core virtual machine, copying it takes 0.1 to 0.4 s on disk and 0.03 s
// in memory. The servers that pgtest starts therefore keep their data in /dev/shm, or in the folder PGTEST_MEMORY, if there is enough space
// (Linux only).
//
// Only tests import this package.
package pgtest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/trapeze-run/trapeze/internal/migrate"
	"github.com/trapeze-run/trapeze/internal/pgembed"
)

// Main runs a package's tests, stops the server that they started, and exits. Temporary files are kept in memory if there is space. Without
// Main, tests that request a database fail, because nothing would stop the server.
func Main(m *testing.M) {
	shared.mainCalled = true
	if err := pgembed.UseMemoryForTemporaryFiles(); err != nil {
		fmt.Fprintln(os.Stderr, "pgtest:", err)
		os.Exit(1)
	}
	code := m.Run()
	if err := shared.stop(); err != nil {
		fmt.Fprintln(os.Stderr, "pgtest:", err)
		code = max(code, 1)
	}
	os.Exit(code)
}

// Pool returns a pool for a new, migrated database. The test must release all connections before it ends.
func Pool(t testing.TB) *pgxpool.Pool {
	t.Helper()
	return Connect(t, URL(t))
}

// Unconnected returns a pool for a test that sends no statements. There is no server at its address.
func Unconnected(t testing.TB) *pgxpool.Pool {
	t.Helper()
	return Connect(t, "postgres://nobody@127.0.0.1:1/none?sslmode=disable&connect_timeout=1")
}

// Connect returns a pool for url that is closed when the test ends. The test fails if a connection has not been released by that time.
func Connect(t testing.TB, url string) *pgxpool.Pool {
	t.Helper()
	pool, err := pgxpool.New(t.Context(), url)
	if err != nil {
		t.Fatalf("pgtest: connect: %v", err)
	}
	t.Cleanup(func() {
		closed := make(chan struct{})
		go func() { pool.Close(); close(closed) }()
		select {
		case <-closed:
		case <-time.After(10 * time.Second):
			t.Errorf("pgtest: the test ended without releasing %d connections of its pool", pool.Stat().AcquiredConns())
		}
	})
	return pool
}

// URL returns the URL of a new, migrated database.
func URL(t testing.TB) string {
	t.Helper()
	return shared.database(t, true)
}

// EmptyURL returns the URL of a new, empty database.
func EmptyURL(t testing.TB) string {
	t.Helper()
	return shared.database(t, false)
}

// URLWith returns the URL of a new, migrated database created with options of CREATE DATABASE, such as encoding 'LATIN1' locale 'C'.
func URLWith(t testing.TB, options string) string {
	t.Helper()
	url := shared.with(t, options)
	Migrate(t, url)
	return url
}

// Server returns a separate server for tests that restart or kill it. Its database is empty (see Migrate). The server is stopped and
// removed when the test ends. settings lists PostgreSQL parameters, each as a name followed by its value. The test is skipped if
// DATABASE_URL is the only PostgreSQL available.
func Server(t testing.TB, settings ...string) *pgembed.Server {
	t.Helper()
	server, err := pgembed.Start(t.Context(), pgembed.Options{TempDir: pgembed.MemoryDir(), Seed: SharedSeed(), Settings: pairs(t, settings)})
	if err != nil {
		if onlyTheirs(err) {
			t.Skipf("pgtest: this test needs a server that it can restart: %v", err)
		}
		t.Fatalf("pgtest: %v", err)
	}
	t.Cleanup(func() {
		if err := server.Stop(); err != nil {
			t.Errorf("pgtest: %v", err)
		}
	})
	return server
}

// onlyTheirs reports whether err means that no server could be started, because the one at DATABASE_URL is the only PostgreSQL available.
func onlyTheirs(err error) bool {
	return errors.Is(err, pgembed.ErrNoBinaries) && os.Getenv("DATABASE_URL") != "" && os.Getenv("PGBIN") == ""
}

func pairs(t testing.TB, settings []string) map[string]string {
	t.Helper()
	if len(settings)%2 != 0 {
		t.Fatalf("pgtest: settings %q: missing value", settings)
	}
	m := map[string]string{}
	for i := 0; i < len(settings); i += 2 {
		m[settings[i]] = settings[i+1]
	}
	return m
}

// AllDays adds the partitions that pods create in production to a database from [Pool] or [URL]: for yesterday, today and the next seven
// days. By default, there are partitions only for yesterday, today and tomorrow, because each session that reads a finished job loads all
// partitions. AllDays must be called at most once per database.
func AllDays(t testing.TB, pool *pgxpool.Pool) {
	t.Helper()
	if _, err := pool.Exec(t.Context(), AllDaysSQL); err != nil {
		t.Fatalf("pgtest: %v", err)
	}
}

// Migrate migrates the database at url to the latest schema version.
func Migrate(t testing.TB, url string) {
	t.Helper()
	if err := migrate.Up(t.Context(), url, Schema); err != nil {
		t.Fatalf("pgtest: %v", err)
	}
}

// ExampleURL is like [URL], but for an Example function, which has no testing.TB. Call drop at the end of the example. ExampleURL panics if
// no database is available.
func ExampleURL() (url string, drop func()) {
	ctx, cancel := context.WithTimeout(context.Background(), within)
	defer cancel()
	name, err := shared.create(ctx, true)
	if err != nil {
		panic(fmt.Sprintf("pgtest: %v", err))
	}
	return WithDatabase(shared.url, name), func() {
		ctx, cancel := context.WithTimeout(context.Background(), within)
		defer cancel()
		if err := shared.drop(ctx, name); err != nil {
			panic(fmt.Sprintf("pgtest: %v", err))
		}
	}
}
