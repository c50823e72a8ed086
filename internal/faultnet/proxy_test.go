package faultnet_test

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/internal/faultnet"
	"github.com/trapeze-run/trapeze/internal/pgtest"
)

// through connects to a new database through a proxy. The connection direct bypasses the proxy.
func through(t *testing.T) (p *faultnet.Proxy, conn, direct *pgx.Conn) {
	t.Helper()
	url := pgtest.URL(t)
	p = pgtest.NewProxy(t, url)
	connect := func(url string) *pgx.Conn {
		c, err := pgx.Connect(t.Context(), url)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = c.Close(context.Background()) })
		return c
	}
	direct = connect(url)
	if _, err := direct.Exec(t.Context(), "create table mine (word text)"); err != nil {
		t.Fatal(err)
	}
	return p, connect(p.URL()), direct
}

func rows(t *testing.T, c *pgx.Conn) (n int) {
	t.Helper()
	if err := c.QueryRow(t.Context(), "select count(*) from mine").Scan(&n); err != nil {
		t.Fatal(err)
	}
	return n
}

const insert = "insert into mine values ($1)"

func TestCutPreparedStatementReply(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	p, conn, direct := through(t)
	for range 2 { // the second execution no longer sends the statement's text
		_, err := conn.Exec(t.Context(), insert, "a")
		is.NoErr(err)
	}
	cut, _ := p.CutReply("into mine")
	var one int
	is.NoErr(conn.QueryRow(t.Context(), "select $1::int", 1).Scan(&one)) // other statements are not affected
	_, err := conn.Exec(t.Context(), insert, "a")
	is.True(err != nil) // the client gets no reply
	<-cut
	pgtest.Wait(t, "the row is there all the same", func() bool { return rows(t, direct) == 3 })
}

func TestCutCommitReply(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	p, conn, direct := through(t)
	cut, _ := p.CutReply("into mine")
	tx, err := conn.Begin(t.Context())
	is.NoErr(err)
	_, err = tx.Exec(t.Context(), insert, "a")
	is.NoErr(err)                          // nothing is cut inside the transaction
	is.True(tx.Commit(t.Context()) != nil) // the reply to the commit is cut
	<-cut                                  //
	pgtest.Wait(t, "it was committed", func() bool { return rows(t, direct) == 1 })
}

func TestCutAfterSavepointRollback(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	p, conn, direct := through(t)
	cut, _ := p.CutReply("")
	tx, err := conn.Begin(t.Context())
	is.NoErr(err)
	nested, err := tx.Begin(t.Context())
	is.NoErr(err)
	is.NoErr(nested.Rollback(t.Context()))
	_, err = tx.Exec(t.Context(), insert, "a")
	is.NoErr(err)
	is.True(tx.Commit(t.Context()) != nil) // the reply to the commit is cut
	<-cut
	pgtest.Wait(t, "it was committed", func() bool { return rows(t, direct) == 1 })
}

func TestDisarmedCut(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	p, conn, direct := through(t)
	_, disarm := p.CutReply("")
	disarm()
	is.NoErr(pgx.BeginFunc(t.Context(), conn, func(tx pgx.Tx) error {
		_, err := tx.Exec(t.Context(), insert, "a")
		return err
	}))
	is.Equal(rows(t, direct), 1)
}

func TestFaultProxySingleDirection(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	p, conn, direct := through(t)
	p.BlackholeOneWay(faultnet.ToClient)
	answered := make(chan error, 1)
	go func() { _, err := conn.Exec(t.Context(), insert, "a"); answered <- err }()
	pgtest.Wait(t, "the statement has reached the server", func() bool {
		var n int
		_ = direct.QueryRow(t.Context(), "select count(*) from pg_stat_activity where datname = current_database() and query = $1", insert).Scan(&n)
		return n == 1
	})
	select {
	case <-answered:
		t.Fatal("an answer got through")
	default:
	}
	p.Pass()
	is.NoErr(<-answered) // nothing was lost
}

func TestFaultProxyDelayAndThrottle(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	p, conn, _ := through(t)
	for _, slow := range []func(){func() { p.Delay(50 * time.Millisecond) }, func() { p.Throttle(200) }} {
		slow()
		began := time.Now()
		is.NoErr(conn.Ping(t.Context()))
		is.True(time.Since(began) > 50*time.Millisecond) // the delay applies
		p.Pass()
		is.NoErr(conn.Ping(t.Context()))
	}
}

func TestFaultProxyByteLimit(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	p, conn, _ := through(t)
	p.CutAfter(1000)
	var text string
	is.NoErr(conn.QueryRow(t.Context(), "select repeat('x', 500)").Scan(&text))       // within the limit
	is.True(conn.QueryRow(t.Context(), "select repeat('x', 500)").Scan(&text) != nil) // beyond the limit
}

func TestFaultProxyNewConnectionsRefused(t *testing.T) {
	t.Parallel()
	for name, refuse := range map[string]func(*faultnet.Proxy){
		"all":            (*faultnet.Proxy).Refuse,
		"beyond a limit": func(p *faultnet.Proxy) { p.Limit(1) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			is := is.New(t)
			p, conn, _ := through(t)
			refuse(p)
			_, err := pgx.Connect(t.Context(), p.URL())
			is.True(err != nil)              // a new connection is broken
			is.NoErr(conn.Ping(t.Context())) // the existing connection still works
			p.Pass()
			another, err := pgx.Connect(t.Context(), p.URL())
			is.NoErr(err) // the fault has ended
			pgtest.Wait(t, "the refused connection is gone", func() bool { return p.Links() == 2 })
			is.NoErr(another.Close(t.Context()))
		})
	}
}

// A restarted program has a new port. The proxy connects to the address that is current when the connection arrives.
func TestFaultProxyDynamicTarget(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	var target atomic.Value
	target.Store("")
	p, err := faultnet.StartTo(func() (string, string) { return "tcp", target.Load().(string) })
	is.NoErr(err)
	defer p.Close()
	is.Equal(p.URL(), "")
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	ask := func() (string, error) {
		answer, err := client.Get("http://" + p.Addr())
		if err != nil {
			return "", err
		}
		defer answer.Body.Close()
		said, err := io.ReadAll(answer.Body)
		return string(said), err
	}
	_, err = ask()
	is.True(err != nil) // no server is listening
	for _, name := range []string{"one", "two"} {
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, name) }))
		target.Store(server.Listener.Addr().String())
		said, err := ask()
		is.NoErr(err)
		is.Equal(said, name)
		server.Close()
	}
}
