//go:build long

package pgembed

import (
	"errors"
	"net/url"
	"os"
	"strconv"
	"strings"
	"testing"

	"github.com/matryer/is"
)

func TestADataDirectoryIsKept(t *testing.T) {
	is := is.New(t)
	dir := openDir(t)
	first, err := Start(t.Context(), Options{DataDir: dir}) // without a seed, so initdb creates the data
	is.NoErr(err)
	ask(t, first.URL(), "CREATE TABLE kept AS SELECT 42 AS n")
	is.NoErr(first.Stop())
	second := start(t, Options{DataDir: dir, Port: first.Port()})
	is.Equal(second.URL(), first.URL()) // Options.Port is respected
	is.Equal(ask(t, second.URL(), "SELECT n::text FROM kept"), "42")
}

func TestDataDirectoryInUse(t *testing.T) {
	is := is.New(t)
	dir := openDir(t)
	first := start(t, Options{DataDir: dir})
	_, err := Start(t.Context(), Options{DataDir: dir})
	is.True(errors.Is(err, ErrInUse))
	is.True(strings.Contains(err.Error(), "process "+strconv.Itoa(os.Getpid()))) // the error names the owner
	is.Equal(ask(t, first.URL(), "SELECT 'unharmed'"), "unharmed")
}

func TestTemporaryServerCleanup(t *testing.T) {
	is := is.New(t)
	s := start(t, Options{Settings: map[string]string{"work_mem": "5MB"}})
	is.Equal(ask(t, s.URL(), "SELECT current_user::text"), "postgres")
	is.Equal(ask(t, s.URL(), "SHOW server_encoding"), "UTF8")
	is.Equal(ask(t, s.URL(), "SHOW fsync"), "on")
	is.Equal(ask(t, s.URL(), "SHOW synchronous_commit"), "on")
	is.Equal(ask(t, s.URL(), "SHOW listen_addresses"), "127.0.0.1")
	is.Equal(ask(t, s.URL(), "SHOW max_connections"), "200")
	is.Equal(ask(t, s.URL(), "SHOW work_mem"), "5MB") // Options.Settings are applied

	bySocket := "postgres://postgres@/postgres?host=" + url.QueryEscape(s.Dir()+"/s") + "&port=" + strconv.Itoa(s.Port()) + "&passfile=" + url.QueryEscape(s.home.passwordFile())
	if s.home.socketDir() != "" {
		is.Equal(ask(t, bySocket, "SHOW port"), strconv.Itoa(s.Port()))
	}

	pid := s.PID()
	is.NoErr(s.Stop())
	is.True(gone(pid)) // the server has exited
	_, err := os.Stat(s.Dir())
	is.True(errors.Is(err, os.ErrNotExist)) // its home was removed
	is.NoErr(s.Stop())                      // a second Stop does nothing
	is.True(s.Restart(t.Context(), "fast") != nil)
}
