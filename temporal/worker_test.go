package temporal_test

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/internal/pgtest"
	"github.com/trapeze-run/trapeze/job"
	"github.com/trapeze-run/trapeze/runner"
	"github.com/trapeze-run/trapeze/temporal"
)

func TestTemporalWorkerWithoutDatabase(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	tokens := make(chan string, 1)
	elsewhere := map[string]handler{
		"list": func(_ context.Context, j *raw) (*runner.Outcome, error) {
			return runner.FanOut(rawKind("part"), rawKind("part"), rawKind("nothing")).Join(rawKind("sum")).Result(100), nil
		},
		"part":    func(_ context.Context, j *raw) (*runner.Outcome, error) { return runner.Done(7), nil },
		"nothing": nothing,
		"sum": func(ctx context.Context, j *raw) (*runner.Outcome, error) {
			total := 0
			if err := j.PreviousResult(ctx, &total); err != nil {
				return nil, err
			}
			for b, err := range j.Branches(ctx) {
				n := 0
				if err == nil && b.No == 3 {
					if !errors.Is(b.Result(&n), job.ErrNotFound) {
						return nil, errors.New("the third branch has a result")
					}
					continue
				}
				if err == nil {
					err = b.Result(&n)
				}
				if err != nil {
					return nil, err
				}
				total += n
			}
			token, err := j.Token(ctx)
			tokens <- token
			return runner.Deferred(1).Result(total), err
		},
	}
	inPod := map[string]handler{}
	for kind := range elsewhere {
		inPod[kind] = func(context.Context, *raw) (*runner.Outcome, error) {
			t.Error("the pod has called a handler")
			return nil, nil
		}
	}
	w := open(t, pgtest.Pool(t), temporal.Options{HandlersElsewhere: true}, inPod)
	w.start()
	r, err := runner.NewRemote(runner.RemoteOptions{Logger: slog.New(slog.DiscardHandler)})
	is.NoErr(err)
	for kind, h := range elsewhere {
		runner.HandleRaw(r, kind, h)
	}
	ctx, cancel := context.WithCancel(t.Context())
	worked := make(chan error, 1)
	go func() {
		worked <- temporal.Work(ctx, r, temporal.Options{Client: w.client, Prefix: t.Name(), HeartbeatTimeout: 2 * time.Second}, 4, job.DefaultLane)
	}()
	w.enqueue("list", `{}`)
	token, sum := <-tokens, int64(0)
	pgtest.Wait(t, "the join waits", func() bool {
		return w.pool.QueryRow(t.Context(), `select p.id from trapeze.parked p join trapeze.jobs j on j.id = p.id where j.kind = 'sum'`).Scan(&sum) == nil
	})
	is.NoErr(w.Complete(t.Context(), sum, token, nil))
	j := w.wait(sum)
	is.Equal(j.State, job.Succeeded)
	is.Equal(string(j.Result), "114")
	cancel()
	is.NoErr(<-worked)
	r.Close()
}

func TestTemporalWorkerHistoryReadLimit(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	large := json.RawMessage(`"` + strings.Repeat("x", 1_000_000) + `"`)
	w := open(t, pgtest.Pool(t), temporal.Options{HandlersElsewhere: true}, map[string]handler{"first": nothing, "second": nothing})
	w.start()
	r, err := runner.NewRemote(runner.RemoteOptions{Logger: quiet})
	is.NoErr(err)
	defer r.Close()
	reads, refused := 0, make(chan error, 1)
	runner.HandleRaw(r, "first", func(context.Context, *raw) (*runner.Outcome, error) {
		return runner.Then(rawKind("second")).Result(large), nil
	})
	runner.HandleRaw(r, "second", func(ctx context.Context, j *raw) (*runner.Outcome, error) {
		for {
			var before string
			if err := j.PreviousResult(ctx, &before); err != nil {
				refused <- err
				return nil, err
			}
			reads++
		}
	})
	go func() {
		_ = temporal.Work(t.Context(), r, temporal.Options{Client: w.client, Prefix: t.Name(), HeartbeatTimeout: 2 * time.Second}, 1, job.DefaultLane)
	}()
	w.enqueue("first", `{}`)
	err = <-refused
	is.True(errors.Is(err, job.ErrTooLarge))
	is.Equal(reads, 15) // each result has 1 MB
	second := one[int64](w, `select id from trapeze.jobs where kind = 'second'`)
	j := w.wait(second)
	is.Equal(j.State, job.Failed)
	is.Equal(j.Attempt, 1) // another attempt would not help
}
