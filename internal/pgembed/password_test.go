package pgembed

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/matryer/is"
)

// refused returns the SQLSTATE with which the server rejects a connection to url, or an empty string if the server accepts it.
func refused(t *testing.T, url string) string {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), url)
	if err == nil {
		_ = conn.Close(context.WithoutCancel(t.Context()))
		return ""
	}
	if pg := new(pgconn.PgError); errors.As(err, &pg) {
		return pg.Code
	}
	t.Fatal(err)
	return ""
}

func TestEmbeddedServerWithoutPassword(t *testing.T) {
	is := is.New(t)
	t.Setenv("PGPASSFILE", "/nonexistent")
	s := start(t, Options{})
	is.Equal(refused(t, s.URL()), "") // the file contains the password
	for _, who := range []string{"postgres", "postgres:guess"} {
		const invalidPassword = "28P01"
		is.Equal(refused(t, fmt.Sprintf("postgres://%s@127.0.0.1:%d/postgres?sslmode=disable", who, s.Port())), invalidPassword)
		if socket := s.home.socketDir(); socket != "" {
			is.Equal(refused(t, fmt.Sprintf("postgres://%s@/postgres?host=%s&port=%d", who, socket, s.Port())), invalidPassword)
		}
	}

	info, err := os.Stat(s.home.passwordFile())
	is.NoErr(err)
	is.Equal(info.Mode().Perm(), os.FileMode(0o600)) // no other user can read it
	config, err := pgx.ParseConfig(s.URL())
	is.NoErr(err)
	is.True(len(config.Password) >= 26)
	is.True(!strings.Contains(s.URL(), config.Password)) // the URL is safe to show
	log, err := os.ReadFile(filepath.Join(s.Dir(), "postgres.log"))
	is.NoErr(err)
	is.True(!strings.Contains(string(log), config.Password))
}

// The data directory was created by a version that trusted every user: it has no password, and its pg_hba.conf admits all connections.
func TestDataDirectoryWithTrustAuthentication(t *testing.T) {
	is := is.New(t)
	t.Setenv("PGPASSFILE", "/nonexistent")
	dir := openDir(t)
	old := start(t, Options{DataDir: dir})
	ask(t, old.URL(), "CREATE TABLE kept AS SELECT 42 AS n")
	ask(t, old.URL(), "ALTER ROLE postgres PASSWORD NULL")
	is.NoErr(old.Stop())
	is.NoErr(os.Remove(old.home.passwordFile()))
	trust := "local all all trust\nhost all all 127.0.0.1/32 trust\n"
	is.NoErr(os.WriteFile(filepath.Join(dir, "pgdata", "pg_hba.conf"), []byte(trust), 0o600))

	s := start(t, Options{DataDir: dir})
	is.Equal(refused(t, fmt.Sprintf("postgres://postgres@127.0.0.1:%d/postgres?sslmode=disable", s.Port())), "28P01")
	is.Equal(ask(t, s.URL(), "SELECT n::text FROM kept"), "42") // the data is still there
	first, err := os.ReadFile(s.home.passwordFile())
	is.NoErr(err)
	is.NoErr(s.Stop())

	again := start(t, Options{DataDir: dir})
	second, err := os.ReadFile(again.home.passwordFile())
	is.NoErr(err)
	is.Equal(string(first), string(second)) // the password has not changed
	is.Equal(ask(t, again.URL(), "SELECT n::text FROM kept"), "42")
}
