package main

import (
	"context"
	"io"
	"log/slog"
	"net/http"
	"sync/atomic"

	"github.com/trapeze-run/trapeze/api"
	"github.com/trapeze-run/trapeze/internal/memhttp"
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
