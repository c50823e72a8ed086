//go:build long

package e2e

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/internal/pgtest"
	"github.com/trapeze-run/trapeze/job"
)

func TestServeWithBundledPostgres(t *testing.T) {
	t.Parallel()
	pgtest.Server(t) // skips the test if DATABASE_URL is the only available PostgreSQL
	is := is.New(t)
	dir, err := os.MkdirTemp("", "trapeze-serve-")
	is.NoErr(err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	is.NoErr(os.Chmod(dir, 0o755)) // if the test runs as root, the server runs as another user, who also needs access

	first := serve(t, "", nil, "--data-dir", dir)
	is.Equal(refusedBy(t, first.Database), "28P01")  // other users cannot read the password
	is.True(!strings.Contains(first.line, `\u0026`)) // the URL can be copied from the output
	doctor := database{t, first.Database}.ok("doctor")
	is.True(strings.HasSuffix(doctor, " ok, 0 warnings, 0 failures\n")) // doctor has no complaints about the defaults
	id := database{t, first.Database}.enqueue("demo.noop", "--wait")
	first.signal(os.Interrupt.(syscall.Signal))
	is.Equal(first.end(), 0)
	is.Equal(database{t, first.Database}.run("jobs").code, 3) // the server stops with the pod

	tokens := filepath.Join(dir, "tokens.json")
	is.NoErr(os.WriteFile(tokens, []byte(`{"tokens":[{"name":"ops","token":"ops-0123456789-0123456789","roles":["viewer"]}]}`), 0o600))
	second := serve(t, "", []string{"TRAPEZE_TOKENS_FILE=" + tokens}, "--data-dir", dir)
	is.Equal(refusedBy(t, second.Database), "28P01")
	is.Equal(database{t, second.Database}.job(id).State, job.Succeeded) // the data survives a restart
	second.signal(syscall.SIGTERM)
	is.Equal(second.end(), 0)
}

// refusedBy returns the SQLSTATE with which the server rejects a client that cannot read the password file.
func refusedBy(t *testing.T, address string) string {
	t.Helper()
	config, err := pgx.ParseConfig(address)
	if err != nil {
		t.Fatal(err)
	}
	config.Password = ""
	conn, err := pgx.ConnectConfig(t.Context(), config)
	if err == nil {
		_ = conn.Close(t.Context())
		return "let in"
	}
	if pg, ok := errors.AsType[*pgconn.PgError](err); ok {
		return pg.Code
	}
	return err.Error()
}
