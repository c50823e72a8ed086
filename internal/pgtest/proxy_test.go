package pgtest

import (
	"bytes"
	"context"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/matryer/is"
)

func TestReplyCutAfterCommit(t *testing.T) {
	is := is.New(t)
	url := URL(t)
	proxy := NewProxy(t, url)
	conn, err := pgx.Connect(t.Context(), proxy.URL())
	is.NoErr(err)
	defer conn.Close(t.Context())
	_, err = conn.Exec(t.Context(), "create table mine (word text)")
	is.NoErr(err)
	cut := proxy.CutReplyOnce(func(b []byte) bool { return bytes.Contains(b, []byte("needle")) })
	_, err = conn.Exec(t.Context(), "insert into mine values ($1)", "needle")
	is.True(err != nil) // the client receives no reply
	<-cut
	var n int
	is.NoErr(Connect(t, url).QueryRow(t.Context(), "select count(*) from mine").Scan(&n))
	is.Equal(n, 1) // the server has committed the row
}

func TestProxyBlackholeRelease(t *testing.T) {
	is := is.New(t)
	proxy := NewProxy(t, URL(t))
	conn, err := pgx.Connect(t.Context(), proxy.URL())
	is.NoErr(err)
	defer conn.Close(t.Context())
	proxy.Blackhole()
	answered := make(chan error, 1)
	go func() { _, err := conn.Exec(t.Context(), "select 1"); answered <- err }()
	connecting, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	_, err = pgx.Connect(connecting, proxy.URL())
	is.True(err != nil) // a new connection receives no reply
	select {
	case <-answered:
		t.Fatal("a byte got through")
	default:
	}
	proxy.Pass()
	is.NoErr(<-answered) // nothing was lost
	proxy.Reset()
	_, err = conn.Exec(t.Context(), "select 1")
	is.True(err != nil) // the connection is gone
}
