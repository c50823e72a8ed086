package api

import (
	"context"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/internal/access"
	"github.com/trapeze-run/trapeze/internal/inside"
	"github.com/trapeze-run/trapeze/internal/pgtest"
	"github.com/trapeze-run/trapeze/runner"
)

func TestClientBlockIPv6(t *testing.T) {
	is := is.New(t)
	is.Equal(neighbourhood("2001:db8::1"), neighbourhood("2001:db8::dead:beef")) // a single host may use any address in its /64
	is.True(neighbourhood("2001:db8::1") != neighbourhood("2001:db8:0:1::1"))
	is.True(neighbourhood("192.0.2.1") != neighbourhood("192.0.2.2"))
	is.Equal(neighbourhood("@"), "@") // the remote address of a Unix socket
}

func TestStreamPermissionRecheckInterval(t *testing.T) {
	is := is.New(t)
	o := StreamOptions{KeepAlive: time.Hour}.withDefaults()
	is.True(2*o.KeepAlive <= time.Minute)
}

// afterRoles is a function, installed as a query tracer, that runs once a principal's roles have been read.
type afterRoles func()

type rolesRead struct{}

func (afterRoles) TraceQueryStart(ctx context.Context, _ *pgx.Conn, q pgx.TraceQueryStartData) context.Context {
	return context.WithValue(ctx, rolesRead{}, strings.Contains(q.SQL, "g.principal = $1"))
}

func (after afterRoles) TraceQueryEnd(ctx context.Context, _ *pgx.Conn, _ pgx.TraceQueryEndData) {
	if ctx.Value(rolesRead{}) == true {
		after()
	}
}

func TestPermissionsChangedDuringRead(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	url := pgtest.URL(t)
	sql := pgtest.Connect(t, url)
	_, err := sql.Exec(t.Context(), `insert into trapeze.grants (principal, role) values ('ana', 'operator')`)
	is.NoErr(err)
	config, err := pgxpool.ParseConfig(url)
	is.NoErr(err)
	var known *rights
	revoke := sync.OnceFunc(func() {
		_, err := sql.Exec(t.Context(), `delete from trapeze.grants`)
		is.NoErr(err)
		known.forget()
	})
	config.ConnConfig.Tracer = afterRoles(revoke)
	pool, err := pgxpool.NewWithConfig(t.Context(), config)
	is.NoErr(err)
	t.Cleanup(pool.Close)
	r, err := runner.New(pool, runner.Options{TraceQueries: true})
	is.NoErr(err)
	defer r.Close()
	known = newRights(inside.Of(r).Store)
	before, err := known.of(t.Context(), access.Principal{Name: "ana"})
	is.NoErr(err)
	is.True(len(before.rights) > 0) // the roles were read before the change
	after, err := known.of(t.Context(), access.Principal{Name: "ana"})
	is.NoErr(err)
	is.Equal(len(after.rights), 0)
}
