package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/internal/pgtest"
)

// seen runs a command that records the URL of its server and exits with code 3.
func seen(t *testing.T) (url string) {
	t.Helper()
	is := is.New(t)
	file := filepath.Join(t.TempDir(), "url")
	code, err := run([]string{"sh", "-c", `printf %s "$` + pgtest.ServerVar + `" > "$0"; exit 3`, file})
	is.NoErr(err)
	is.Equal(code, 3)
	text, err := os.ReadFile(file)
	is.NoErr(err)
	return string(text)
}

func TestCommandServerLifetime(t *testing.T) {
	is := is.New(t)
	t.Setenv(pgtest.ServerVar, "")
	t.Setenv("DATABASE_URL", "")
	url := seen(t)
	is.True(strings.HasPrefix(url, "postgres://"))
	_, err := pgx.Connect(t.Context(), url)
	is.True(err != nil) // the server is gone
}

func TestCommandOnSuperuserServer(t *testing.T) {
	is := is.New(t)
	t.Setenv(pgtest.ServerVar, "")
	server, err := pgtest.StartServer(t.Context())
	is.NoErr(err)
	defer func() { is.NoErr(server.Stop()) }()
	t.Setenv("DATABASE_URL", server.URL())
	is.Equal(seen(t), "")
	code, err := run([]string{"sh", "-c", "kill -9 $$"})
	is.NoErr(err)
	is.Equal(code, 1)

	conn, err := pgx.Connect(t.Context(), server.URL())
	is.NoErr(err)
	_, err = conn.Exec(t.Context(), "create role modest createdb")
	is.NoErr(err)
	is.NoErr(conn.Close(t.Context()))
	t.Setenv("DATABASE_URL", pgtest.WithParameter(server.URL(), "role=modest"))
	is.True(seen(t) != "") // a new server was started
}

func TestUnstartableCommand(t *testing.T) {
	is := is.New(t)
	for _, command := range [][]string{nil, {"/nowhere/command"}} {
		code, err := run(command)
		is.True(err != nil)
		is.True(code > 0)
	}
}
