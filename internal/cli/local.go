package cli

import (
	"context"
	"io"
	"log/slog"
	"net/http"
	"os/user"
	"sync/atomic"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/trapeze-run/trapeze/api"
	"github.com/trapeze-run/trapeze/internal/inside"
	"github.com/trapeze-run/trapeze/internal/schema"
	"github.com/trapeze-run/trapeze/runner"
)

// openLocal connects the client to an API in this process, which uses DATABASE_URL and a runner that is never started. The local user has
// all permissions.
func (at *Client) openLocal(ctx context.Context, config Settings) error {
	if config.DatabaseURL == "" {
		return ErrNoDatabase
	}
	pool, err := config.Connect(ctx, false)
	if err != nil {
		return err
	}
	if err := schema.Check(ctx, pool, config.Options.Schema); err != nil {
		pool.Close()
		return err
	}
	slog.SetDefault(slog.New(slog.DiscardHandler)) // the command prints its own error
	o := config.Options
	o.Logger = slog.Default()
	r, err := runner.New(pool, o)
	if err != nil {
		pool.Close()
		return Usage("%w", err)
	}
	here := &local{pool: pool, runner: r, polls: config.Options.DirectURL == "off"}
	here.api = Transport{RemoteAddr: "cli", Handler: api.Handler(r, api.Options{
		InsecureAllowAll: true, Operator: Operator(), OnFailure: keepCause, MaxBodyBytes: 1 << 30, ChangesPerSecond: -1,
	})}
	at.local, at.url, at.http = true, "http://trapeze", &http.Client{Transport: here}
	at.close = func() {
		here.api.Close()
		r.Close()
		pool.Close()
	}
	return nil
}

// Operator returns the local user's name for the audit log.
func Operator() string {
	if who, err := user.Current(); err == nil && (api.Principal{Name: who.Username}).Validate() == nil {
		return who.Username
	}
	return "operator"
}

// local is the HTTP transport to the API in this process. After a change, it wakes the pods, which might otherwise not notice the change
// until their next poll. Errors that the API would only log are returned as the request's error.
type local struct {
	api    Transport
	pool   *pgxpool.Pool
	runner *runner.Runner
	polls  bool // whether pods poll instead of listening for notifications
}

func (l *local) RoundTrip(request *http.Request) (*http.Response, error) {
	behind := &cause{}
	response, err := l.api.RoundTrip(request.WithContext(context.WithValue(request.Context(), causeKey{}, behind)))
	if err != nil {
		return nil, err
	}
	if known := behind.err.Load(); known != nil {
		_ = response.Body.Close()
		return nil, *known
	}
	if request.Method != http.MethodGet && response.StatusCode < 300 && !l.polls {
		_ = inside.Of(l.runner).Store.Notify(request.Context(), l.pool)
	}
	response.Body = &body{response.Body, behind}
	return response, nil
}

// cause holds the error behind a response, if any. The request's context carries it.
type cause struct{ err atomic.Pointer[error] }

type causeKey struct{}

func keepCause(request *http.Request, err error) {
	if behind, ok := request.Context().Value(causeKey{}).(*cause); ok {
		behind.err.Store(&err)
	}
}

// body is a response body. If the response was aborted, Read returns the cause.
type body struct {
	io.ReadCloser
	behind *cause
}

func (b *body) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if known := b.behind.err.Load(); known != nil && err != nil && err != io.EOF { //nolint:errorlint // the end of a body is exactly io.EOF
		err = *known
	}
	return n, err
}
