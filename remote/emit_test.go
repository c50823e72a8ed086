package remote_test

import (
	"context"
	"errors"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/internal/inside"
	"github.com/trapeze-run/trapeze/internal/pgtest"
	"github.com/trapeze-run/trapeze/internal/store/view"
	"github.com/trapeze-run/trapeze/job"
	"github.com/trapeze-run/trapeze/remote/server"
	"github.com/trapeze-run/trapeze/remote/worker"
	"github.com/trapeze-run/trapeze/runner"
)

func TestUnansweredRemoteEvent(t *testing.T) {
	is := is.New(t)
	pool := pgtest.Pool(t)
	p := startPod(t, pool, runner.Options{}, server.Options{})
	begun, emit, emitted := make(chan struct{}, 1), make(chan struct{}), make(chan error, 1)
	stopWorker := startWorker(t, worker.Options{Server: p.url}, func(r *runner.Runner) {
		runner.HandleRaw(r, "tells", func(ctx context.Context, j *runner.Job[runner.Raw]) (*runner.Outcome, error) {
			j.Progress(1, 2)
			begun <- struct{}{}
			<-emit
			begun <- struct{}{}
			emitted <- j.Emit(ctx, "it.told", "", "", nil)
			return nil, nil
		})
	})
	id := submit(t, p, raw("tells", `{}`))
	<-begun
	pgtest.Wait(t, "a heartbeat has brought its progress, and with it that it arrived", func() (noted bool) {
		_ = pool.QueryRow(t.Context(), `select exists (select from trapeze.job_progress where done = 1)`).Scan(&noted)
		return noted
	})
	p.stop()
	close(emit)
	<-begun
	select {
	case err := <-emitted:
		t.Fatalf("the event was given up at once: %v", err)
	default:
	}
	next := startPodAt(t, strings.TrimPrefix(p.url, "http://"), pool, runner.Options{}, server.Options{})
	is.NoErr(<-emitted) // the pod that started later accepted the event
	ends(t, next, id, job.Succeeded)
	is.NoErr(stopWorker()) // while the pod still runs; otherwise the worker may send its outcome again for 20 s
	list, err := view.JobEvents(t.Context(), inside.Of(next.Runner).Store, id, 0, 100)
	is.NoErr(err)
	told := 0
	for _, e := range list {
		if e.Event == "it.told" {
			told++
		}
	}
	is.Equal(told, 1)
}

type connOf struct{}

// A pod has written an event, but its reply is lost. The worker must not write the event again, and the handler learns that the outcome is
// unknown.
func TestLostReplyToRemoteEvent(t *testing.T) {
	is := is.New(t)
	pool := pgtest.Pool(t)
	p := startPod(t, pool, runner.Options{}, server.Options{})
	path, inner := server.Handler(p.Runner, server.Options{Authenticate: byToken})
	var notes atomic.Int64
	mux := http.NewServeMux()
	mux.HandleFunc(path, func(w http.ResponseWriter, r *http.Request) {
		if !strings.HasSuffix(r.URL.Path, "/Note") || notes.Add(1) > 1 {
			inner.ServeHTTP(w, r)
			return
		}
		inner.ServeHTTP(httptest.NewRecorder(), r)
		_ = r.Context().Value(connOf{}).(net.Conn).Close()
		panic(http.ErrAbortHandler)
	})
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	is.NoErr(err)
	web := &http.Server{Handler: mux, Protocols: new(http.Protocols), ReadTimeout: 3 * time.Second, WriteTimeout: 3 * time.Second,
		ConnContext: func(ctx context.Context, c net.Conn) context.Context { return context.WithValue(ctx, connOf{}, c) }}
	web.Protocols.SetUnencryptedHTTP2(true)
	go func() { _ = web.Serve(listener) }()
	t.Cleanup(func() { _ = web.Close() })
	emitted := make(chan error, 1)
	startWorker(t, worker.Options{Server: "http://" + listener.Addr().String()}, func(r *runner.Runner) {
		runner.HandleRaw(r, "tells", func(ctx context.Context, j *runner.Job[runner.Raw]) (*runner.Outcome, error) {
			emitted <- j.Emit(ctx, "it.told", "", "", nil)
			return nil, nil
		})
	})
	id := submit(t, p, raw("tells", `{}`))
	is.True(errors.Is(<-emitted, job.ErrOutcomeUnknown))
	ends(t, p, id, job.Succeeded)
	list, err := view.JobEvents(t.Context(), inside.Of(p.Runner).Store, id, 0, 100)
	is.NoErr(err)
	told := 0
	for _, e := range list {
		if e.Event == "it.told" {
			told++
		}
	}
	is.Equal(told, 1)
}
