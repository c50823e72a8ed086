package remote_test

import (
	"context"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"sync/atomic"
	"testing"
	"time"

	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/internal/pgtest"
	"github.com/trapeze-run/trapeze/job"
	"github.com/trapeze-run/trapeze/remote/server"
	"github.com/trapeze-run/trapeze/remote/worker"
	"github.com/trapeze-run/trapeze/runner"
)

// balance starts a proxy in front of the pods that distributes HTTP/2 requests round-robin, so that each call reaches the next pod.
func balance(t *testing.T, pods ...pod) string {
	t.Helper()
	var to []*url.URL
	for _, p := range pods {
		at, err := url.Parse(p.url)
		if err != nil {
			t.Fatal(err)
		}
		to = append(to, at)
	}
	clear := new(http.Protocols)
	clear.SetUnencryptedHTTP2(true)
	turn := atomic.Int64{}
	proxy := &httputil.ReverseProxy{
		Rewrite:       func(r *httputil.ProxyRequest) { r.SetURL(to[turn.Add(1)%int64(len(to))]) },
		Transport:     &http.Transport{Protocols: clear},
		FlushInterval: -1,
		ErrorHandler:  func(w http.ResponseWriter, _ *http.Request, _ error) { w.WriteHeader(http.StatusBadGateway) },
	}
	front := httptest.NewUnstartedServer(proxy)
	front.Config.Protocols = clear
	front.Start()
	t.Cleanup(front.Close)
	return front.URL
}

func TestRemoteCancelBeforeNextHeartbeat(t *testing.T) {
	is := is.New(t)
	pool := pgtest.Pool(t)
	p := startPod(t, pool, runner.Options{HeartbeatInterval: time.Minute, LeaseDuration: 10 * time.Minute}, server.Options{})
	started, why := make(chan int64, 1), make(chan error, 1)
	startWorker(t, worker.Options{Server: p.url}, func(r *runner.Runner) {
		runner.HandleRaw(r, "far", func(ctx context.Context, j *runner.Job[runner.Raw]) (*runner.Outcome, error) {
			started <- j.ID()
			<-ctx.Done()
			why <- context.Cause(ctx)
			return nil, ctx.Err()
		})
	})
	submit(t, p, raw("far", `{}`))
	id := <-started
	_, err := p.Admin("ops").Cancel(t.Context(), id)
	is.NoErr(err)
	select {
	case cause := <-why:
		is.Equal(cause, job.ErrCancelled)
	case <-time.After(10 * time.Second):
		t.Fatal("the worker was not notified")
	}
	ends(t, p, id, job.Cancelled)
}
