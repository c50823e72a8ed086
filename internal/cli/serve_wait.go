package cli

import (
	"context"
	"errors"
	"net"
	"net/http"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/trapeze-run/trapeze/internal/dburl"
	"github.com/trapeze-run/trapeze/internal/store"
	"github.com/trapeze-run/trapeze/internal/telemetry"
)

const (
	primaryEvery = time.Second // interval between attempts to connect to a primary
	primaryLog   = time.Minute // interval between log lines about failed attempts
)

// connect connects to the primary. If only read-only servers respond, as during a failover, it waits for a primary. Until then, it answers
// /healthz with 200 and all other requests with 503.
func (s *serving) connect(ctx context.Context) (*pgxpool.Pool, error) {
	pool, err := s.config.Connect(ctx, true)
	if !errors.Is(err, dburl.ErrReadOnly) {
		return pool, err
	}
	stop, err2 := s.answerNotStarted()
	if err2 != nil {
		return nil, err2
	}
	defer stop()
	var logged time.Time
	for errors.Is(err, dburl.ErrReadOnly) || store.Transient(err) {
		if time.Since(logged) >= primaryLog {
			logged = time.Now()
			s.log.WarnContext(ctx, "not started yet: waiting for a database that accepts writes", telemetry.Err, err)
		}
		select {
		case <-ctx.Done():
			return nil, errors.Join(context.Cause(ctx), err)
		case <-time.After(primaryEvery):
		}
		pool, err = s.config.Connect(ctx, true)
	}
	return pool, err
}

// answerNotStarted serves HTTP until stop is called, so that health checks see a process that is alive but not ready.
func (s *serving) answerNotStarted() (stop func(), err error) {
	listener, err := net.Listen("tcp", s.config.API.Addr)
	if err != nil {
		return nil, Usage("TRAPEZE_HTTP_ADDR: %w: use another address, or port 0 for a free port", err)
	}
	secure, err := s.config.API.TLS()
	if err != nil {
		return nil, errors.Join(Usage("%w", err), listener.Close())
	}
	server := &http.Server{ReadHeaderTimeout: 5 * time.Second, TLSConfig: secure,
		Handler: http.HandlerFunc(func(w http.ResponseWriter, request *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			if request.URL.Path == "/healthz" {
				_, _ = w.Write([]byte(`{"status":"ok"}` + "\n"))
				return
			}
			w.WriteHeader(http.StatusServiceUnavailable)
			_, _ = w.Write([]byte(`{"ready":false,"reasons":["not started: the database accepts no writes"]}` + "\n"))
		})}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		if secure != nil {
			_ = server.ServeTLS(listener, "", "")
			return
		}
		_ = server.Serve(listener)
	}()
	return func() { _ = server.Close(); <-ended }, nil
}
