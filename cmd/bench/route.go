package main

import (
	"context"
	neturl "net/url"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/trapeze-run/trapeze/runner"
)

// route describes how a program connects to the database: directly or through PgBouncer, and with or without notifications.
type route struct {
	via      *pgbouncer // nil for a direct connection
	noNotify bool       // notifications are disabled, as with TRAPEZE_DATABASE_DIRECT_URL=off
}

// pool returns the URL for the host's pool, given the database's URL.
func (w route) pool(url string) (string, error) {
	if w.via == nil {
		return url, nil
	}
	parsed, err := neturl.Parse(url)
	if err != nil {
		return "", err
	}
	parsed.Host = w.via.address
	query := parsed.Query()
	query.Set("default_query_exec_mode", "exec") // prevents prepared statements, which the next server connection would not have
	parsed.RawQuery = query.Encode()
	return parsed.String(), nil
}

// direct returns the value of Options.DirectURL.
func (w route) direct(url string) string {
	switch {
	case w.noNotify:
		return "off"
	case w.via != nil:
		return url
	}
	return ""
}

// rigOn returns a benchmark rig that connects to a fresh database over the given route.
func (b *lab) rigOn(ctx context.Context, w route, o runner.Options) (*rig, error) {
	url, drop, err := b.fresh(ctx)
	if err != nil {
		return nil, err
	}
	g := &rig{url: url, end: []func(){drop}}
	if g.pool, g.r, err = w.runner(ctx, url, o); err != nil {
		g.close()
		return nil, err
	}
	g.end = append(g.end, g.pool.Close, g.r.Close)
	return g, nil
}

// runner returns a runner and the pool that it uses.
func (w route) runner(ctx context.Context, url string, o runner.Options) (*pgxpool.Pool, *runner.Runner, error) {
	o.DirectURL = w.direct(url)
	address, err := w.pool(url)
	if err != nil {
		return nil, nil, err
	}
	pool, err := pgxpool.New(ctx, address)
	if err != nil {
		return nil, nil, err
	}
	r, err := runner.New(pool, o)
	if err != nil {
		pool.Close()
		return nil, nil, err
	}
	return pool, r, nil
}
