package runner

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/internal/pgtest"
	"github.com/trapeze-run/trapeze/internal/store"
	"github.com/trapeze-run/trapeze/job"
)

// A claim may be committed while the runner is stopping. The pod then holds the job, but no handler will run it.
func TestLateClaimForStoppingRunner(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	r, err := New(pgtest.Unconnected(t), Options{Logger: slog.New(slog.DiscardHandler)})
	is.NoErr(err)
	defer r.Close()
	HandleRaw(r, "k", never)
	r.pod.Runs.Shut()
	is.True(!r.pod.Unknown.Due())
	reserved := map[string]int{"default": 1}
	r.pod.LaunchClaims(r.PodID(), store.Claims{Jobs: []*store.Claimed{{ID: 7, Definition: store.Definition{Kind: "k"}, Lane: "default", Fence: 1}}}, reserved)
	is.True(r.pod.Unknown.Due())     // the claim will be handed back before the pod leaves
	is.Equal(reserved["default"], 1) // releasing the reserved slot is left to the caller
	is.Equal(r.pod.Runs.Len(), 0)
}

// A pod may lose its lease and register again between the commit of a claim and the start of its handler. The claim then belongs to the
// former pod, so the handler's context is cancelled before it starts.
func TestClaimOfFormerLease(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	r, err := New(pgtest.Unconnected(t), Options{Logger: slog.New(slog.DiscardHandler)})
	is.NoErr(err)
	defer r.Close()
	HandleRaw(r, "k", never, ContinueWithoutDatabase()) // ContinueWithoutDatabase does not apply to a lost lease
	run := r.pod.NewRun(&store.Claimed{ID: 7, Lane: "default", Fence: 1, Definition: store.Definition{Kind: "k"}}, "the pod id before")
	is.True(errors.Is(context.Cause(run.Ctx), job.ErrLeaseLost))
}

// The handler is then also watched, although its context ended before it started.
func TestStuckHandlerOfFormerLease(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	logged := make(lines, 100)
	r, err := New(pgtest.Unconnected(t), Options{StuckAfter: time.Millisecond, Logger: slog.New(slog.NewTextHandler(logged, nil))})
	is.NoErr(err)
	defer r.Close()
	returns := make(chan struct{})
	HandleRaw(r, "k", func(context.Context, *Job[Raw]) (*Outcome, error) {
		<-returns
		return nil, nil
	})
	claims := store.Claims{Jobs: []*store.Claimed{{ID: 7, Definition: store.Definition{Kind: "k"}, Lane: "default", Fence: 1}}}
	r.pod.LaunchClaims("the pod id before", claims, map[string]int{"default": 1})
	logged.await("handler ignores its cancelled context")
	close(returns)
	logged.await("stuck handler returned")
}

// lines receives the lines of a log.
type lines chan string

func (l lines) Write(line []byte) (int, error) {
	l <- string(line)
	return len(line), nil
}

// await blocks until a line contains the text.
func (l lines) await(text string) {
	for !strings.Contains(<-l, text) {
	}
}

// never is a handler that must never be called.
func never(context.Context, *Job[Raw]) (*Outcome, error) { panic("it runs") }
