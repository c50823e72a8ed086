package api_test

import (
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/labstack/echo/v4"

	"github.com/trapeze-run/trapeze/api"
	"github.com/trapeze-run/trapeze/internal/pgtest"
	"github.com/trapeze-run/trapeze/job"
	"github.com/trapeze-run/trapeze/runner"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

// host is a host program's echo router with the API under /trapeze. Its pod handles the kinds echo, wait, defer, fan, hold, noisy and slow.
// A noisy job emits events. A slow job reports that it is half done and then runs until it is cancelled.
type host struct {
	*runner.Runner
	t    *testing.T
	url  string
	stop func() // drains the pod

	tokens chan string // the tokens of jobs of kind defer
	holds  sync.Map    // job ID → channel whose closing ends that job of kind hold
}

func newHost(t *testing.T, o api.Options, more ...func(*runner.Runner)) *host {
	t.Helper()
	return newHostOn(t, pgtest.Pool(t), o, more...)
}

func newHostOn(t *testing.T, pool *pgxpool.Pool, o api.Options, more ...func(*runner.Runner)) *host {
	t.Helper()
	return newHostWith(t, pool, o, func(*http.Server) {}, more...)
}

func newHostWith(t *testing.T, pool *pgxpool.Pool, o api.Options, set func(*http.Server), more ...func(*runner.Runner)) *host {
	t.Helper()
	h, web := serve(t, pool, o, set, more...)
	h.stop = runs(t, h.Runner, web)
	return h
}

// newIdleHost is like newHost, but its pod does not run, which is cheaper. It is for tests that need only the API and the database.
func newIdleHost(t *testing.T, o api.Options) *host {
	t.Helper()
	h, web := serve(t, pgtest.Pool(t), o, func(*http.Server) {})
	t.Cleanup(func() {
		web.Close()
		h.Close()
	})
	return h
}

// serve returns a host whose pod has not been started, and its server.
func serve(t *testing.T, pool *pgxpool.Pool, o api.Options, set func(*http.Server), more ...func(*runner.Runner)) (*host, *httptest.Server) {
	t.Helper()
	r, err := runner.New(pool, runner.Options{MaxAttempts: 1, HeartbeatInterval: 100 * time.Millisecond, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	runner.HandleRaw(r, "echo", func(_ context.Context, j *runner.Job[runner.Raw]) (*runner.Outcome, error) {
		return runner.Done(j.Args.JSON), nil
	})
	runner.HandleRaw(r, "wait", func(ctx context.Context, _ *runner.Job[runner.Raw]) (*runner.Outcome, error) {
		<-ctx.Done()
		return nil, context.Cause(ctx)
	})
	for _, register := range more {
		register(r)
	}
	runner.HandleRaw(r, "noisy", func(ctx context.Context, j *runner.Job[runner.Raw]) (*runner.Outcome, error) {
		for ctx.Err() == nil {
			if err := j.Emit(ctx, "noise", "", "", nil); err != nil {
				return nil, err
			}
			select {
			case <-ctx.Done():
			case <-time.After(50 * time.Millisecond):
			}
		}
		return nil, context.Cause(ctx)
	})
	runner.HandleRaw(r, "slow", func(ctx context.Context, j *runner.Job[runner.Raw]) (*runner.Outcome, error) {
		j.Progress(1, 2)
		<-ctx.Done()
		return nil, context.Cause(ctx)
	})
	if o.Authenticate == nil {
		o.InsecureAllowAll = true
	}
	tokens := make(chan string, 10)
	runner.HandleRaw(r, "defer", func(ctx context.Context, j *runner.Job[runner.Raw]) (*runner.Outcome, error) {
		token, err := j.Token(ctx)
		tokens <- token
		return runner.Deferred(2), err
	})
	runner.HandleRaw(r, "fan", func(context.Context, *runner.Job[runner.Raw]) (*runner.Outcome, error) {
		return runner.FanOut(runner.Raw{Name: "echo"}, runner.Raw{Name: "echo"}), nil
	})
	h := &host{Runner: r, t: t, tokens: tokens}
	runner.HandleRaw(r, "hold", func(ctx context.Context, j *runner.Job[runner.Raw]) (*runner.Outcome, error) {
		select {
		case <-h.held(strconv.FormatInt(j.ID(), 10)):
			return nil, nil
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	})
	e := echo.New()
	api.Mount(e.Group("/trapeze"), r, o)
	web := httptest.NewUnstartedServer(e)
	web.Config.ConnContext = api.ConnContext
	set(web.Config)
	web.Start()
	h.url = web.URL + "/trapeze"
	return h, web
}

// held returns a channel whose closing ends the job of kind hold with the given ID.
func (h *host) held(id string) chan struct{} {
	c, _ := h.holds.LoadOrStore(id, make(chan struct{}))
	return c.(chan struct{})
}

// answer is an API response.
type answer struct {
	status int
	header http.Header
	body   map[string]any
	text   string
}

// send sends one request; header alternates names and values.
func (h *host) send(method, path, body string, header ...string) answer {
	h.t.Helper()
	request, err := http.NewRequestWithContext(h.t.Context(), method, h.url+path, strings.NewReader(body))
	if err != nil {
		h.t.Fatal(err)
	}
	if body != "" {
		request.Header.Set("Content-Type", "application/json")
	}
	for i := 0; i < len(header); i += 2 {
		request.Header.Set(header[i], header[i+1])
		if header[i] == "Host" {
			request.Host = header[i+1]
		}
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		h.t.Fatal(err)
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err != nil {
		h.t.Fatal(err)
	}
	a := answer{status: response.StatusCode, header: response.Header, text: string(text)}
	_ = json.Unmarshal(text, &a.body)
	return a
}

// submit submits a job and returns its ID.
func (h *host) submit(body string) string {
	h.t.Helper()
	a := h.send("POST", "/jobs", body)
	if a.status != http.StatusAccepted {
		h.t.Fatalf("submit %s: %d %s", body, a.status, a.text)
	}
	return a.body["id"].(string)
}

// until waits until a job has reached a state.
func (h *host) until(id string, state job.State) answer {
	h.t.Helper()
	return h.untilAs(id, state)
}

// untilAs is like until, but sends headers that identify the caller.
func (h *host) untilAs(id string, state job.State, header ...string) answer {
	h.t.Helper()
	var a answer
	pgtest.Wait(h.t, "the job is "+string(state), func() bool {
		a = h.send("GET", "/jobs/"+id, "", header...)
		return a.body["state"] == string(state)
	})
	return a
}

// as authenticates every request as the same principal.
func authenticateAs(name string, roles ...string) func(*http.Request) (api.Principal, error) {
	return func(*http.Request) (api.Principal, error) { return api.Principal{Name: name, Roles: roles}, nil }
}

// runs runs a pod behind a server until the test ends. The returned function drains the pod before then.
func runs(t *testing.T, r *runner.Runner, web *httptest.Server) (drain context.CancelFunc) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- r.Run(ctx) }()
	t.Cleanup(func() {
		r.StopNow()
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("Run: %v", err)
		}
		web.Close()
		r.Close()
	})
	pgtest.Wait(t, "the runner is ready", func() bool { ready, _ := r.Ready(); return ready })
	return cancel
}
