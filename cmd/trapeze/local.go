package main

import (
	"context"
	"io"
	"log/slog"
	"net/http"
	"os/user"
	"sync/atomic"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/trapeze-run/trapeze/api"
	"github.com/trapeze-run/trapeze/internal/memhttp"
	"github.com/trapeze-run/trapeze/internal/migrate"
	"github.com/trapeze-run/trapeze/runner"
)

// newLocal acts through an API in this process, over db, which it closes. The user of this machine may do everything, as the audit says.
func newLocal(db *client) *server {
	slog.SetDefault(slog.New(slog.DiscardHandler)) // a command prints its error
	here := &memhttp.Transport{RemoteAddr: "cli", Handler: api.Handler(db.Runner, api.Options{
		InsecureAllowAll: true, Operator: operator(), OnFailure: failed, MaxBodyBytes: 1 << 30, ChangesPerSecond: -1,
	})}
	return &server{address: address{url: "http://trapeze"}, local: true, http: &http.Client{Transport: &local{here, db}}, close: func() {
		here.Close()
		db.Close()
	}}
}

// local answers requests in this process, and wakes the pods after changes. What went wrong is an error of its own, not an answer about it.
type local struct {
	here *memhttp.Transport
	db   *client
}

func (l *local) RoundTrip(request *http.Request) (*http.Response, error) {
	wrong := &cause{}
	response, err := l.here.RoundTrip(request.WithContext(context.WithValue(request.Context(), causeKey{}, wrong)))
	if err != nil {
		return nil, err
	}
	if known := wrong.err.Load(); known != nil {
		_ = response.Body.Close()
		return nil, *known
	}
	if request.Method != http.MethodGet && response.StatusCode < 300 {
		l.db.wake(request.Context())
	}
	response.Body = &whole{response.Body, wrong}
	return response, nil
}

type causeKey struct{}

// cause is the error behind an answer, once there is one.
type cause struct{ err atomic.Pointer[error] }

// failed keeps the error behind an answer for who asked.
func failed(request *http.Request, err error) {
	if wrong, ok := request.Context().Value(causeKey{}).(*cause); ok {
		wrong.err.Store(&err)
	}
}

// whole is an answer that says why it was broken off.
type whole struct {
	io.ReadCloser
	wrong *cause
}

func (w *whole) Read(b []byte) (int, error) {
	n, err := w.ReadCloser.Read(b)
	if known := w.wrong.err.Load(); known != nil && err != nil && err != io.EOF { //nolint:errorlint // a reader's end is io.EOF itself
		err = *known
	}
	return n, err
}

// client is a runner that never runs: it submits, commands and reads.
type client struct {
	*runner.Runner
	config config
	pool   *pgxpool.Pool
}

// open connects a command to the database.
func open(ctx context.Context) (*client, error) {
	c, err := loadConfig()
	if err != nil {
		return nil, err
	}
	if c.Server != "" || asksServer(ctx) {
		return nil, usage("this command works on the database itself: leave out --server, unset TRAPEZE_SERVER, and set DATABASE_URL")
	}
	if c.DatabaseURL == "" {
		return nil, errNoDatabase
	}
	pool, err := c.connect(ctx, false)
	if err != nil {
		return nil, err
	}
	if err := migrate.Check(ctx, pool, c.Schema); err != nil {
		pool.Close()
		return nil, err
	}
	o := c.options()
	o.Logger = slog.New(slog.DiscardHandler)
	r, err := runner.New(pool, o)
	if err != nil {
		pool.Close()
		return nil, usage("%w", err)
	}
	return &client{Runner: r, config: c, pool: pool}, nil
}

// Close closes all connections.
func (c *client) Close() {
	c.Runner.Close()
	c.pool.Close()
}

// wake tells the pods that there is something to do; they would find it at their next poll.
func (c *client) wake(ctx context.Context) {
	if c.config.DirectURL != "off" {
		_ = c.Store().Notify(ctx, c.pool)
	}
}

// operator is the name under which a command is written down.
func operator() string {
	if who, err := user.Current(); err == nil && (api.Principal{Name: who.Username}).Validate() == nil {
		return who.Username
	}
	return "operator"
}
