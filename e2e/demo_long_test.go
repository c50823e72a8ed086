//go:build long

package e2e

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/internal/cli"
	"github.com/trapeze-run/trapeze/internal/pgtest"
)

func TestDemoOnUserDatabase(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	url := pgtest.EmptyURL(t)
	checkDemo(t, trapeze(t, []string{"DATABASE_URL=" + url}, "demo", "--json"))
	var left, connected int
	pool := pgtest.Connect(t, url)
	is.NoErr(pool.QueryRow(t.Context(), `select count(*) from pg_namespace where nspname like 'trapeze%'`).Scan(&left))
	is.Equal(left, 0) // the demo has dropped its schemas
	pgtest.Wait(t, "the demo has closed all connections", func() bool {
		err := pool.QueryRow(t.Context(), `select count(*) from pg_stat_activity
			where datname = current_database() and pid <> pg_backend_pid()`).Scan(&connected)
		return err == nil && connected == 0
	})
}

func TestDemoPartialPipeline(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	path := filepath.Join(t.TempDir(), "flights.csv")
	is.NoErr(os.WriteFile(path, []byte("flown_at,origin,destination,distance_miles\n"+
		"2024-01-01T00:00:00Z,ATL,JFK,100\n2024-01-02T00:00:00Z,BOS,LAX,3218688\n"), 0o600)) // the distance from BOS is in meters instead of miles
	got := trapeze(t, []string{"DATABASE_URL=" + pgtest.EmptyURL(t)}, "demo", "--file", path)
	is.Equal(got.err, "")
	is.Equal(got.code, cli.CodeOK)
	for _, line := range []string{
		"Total: 41.038272 kg CO2e from 1 flights",
		"The pipeline is partial: 1 airports could not be recalculated and are left out.",
		"  BOS  a distance of more than 20038 km, half way round the Earth, in 1 of 1 flights: are they in miles?",
		" pipeline 1", // names the pipeline to inspect
	} {
		if !strings.Contains(got.out, line) {
			t.Errorf("the demo does not print %q:\n%s", line, got.out)
		}
	}
}
