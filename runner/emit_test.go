package runner_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/internal/pgtest"
	"github.com/trapeze-run/trapeze/job"
	"github.com/trapeze-run/trapeze/runner"
)

// listener counts the statements that contain given texts, on a pool and on the runners that use it.
type listener struct {
	mu    sync.Mutex
	heard map[string]int // counts by text
}

func (l *listener) TraceQueryStart(ctx context.Context, _ *pgx.Conn, data pgx.TraceQueryStartData) context.Context {
	l.mu.Lock()
	defer l.mu.Unlock()
	for text := range l.heard {
		if strings.Contains(data.SQL, text) {
			l.heard[text]++
		}
	}
	return ctx
}

func (*listener) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}

func (*listener) TraceBatchStart(ctx context.Context, _ *pgx.Conn, _ pgx.TraceBatchStartData) context.Context {
	return ctx
}

func (l *listener) TraceBatchQuery(ctx context.Context, conn *pgx.Conn, data pgx.TraceBatchQueryData) {
	l.TraceQueryStart(ctx, conn, pgx.TraceQueryStartData{SQL: data.SQL})
}

func (*listener) TraceBatchEnd(context.Context, *pgx.Conn, pgx.TraceBatchEndData) {}

func (l *listener) count(text string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.heard[text]
}

// heardPool returns a pool, and a listener that counts its statements by the texts that they contain.
func heardPool(t *testing.T, url string, texts ...string) (*pgxpool.Pool, *listener) {
	t.Helper()
	config, err := pgxpool.ParseConfig(url)
	if err != nil {
		t.Fatal(err)
	}
	l := &listener{heard: map[string]int{}}
	for _, text := range texts {
		l.heard[text] = 0
	}
	config.ConnConfig.Tracer = l
	pool, err := pgxpool.NewWithConfig(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	return pool, l
}

// emitted returns, in order, the messages of a job's events that have a given name.
func emitted(t *testing.T, pool *pgxpool.Pool, id int64, event string) []string {
	t.Helper()
	return queryOne[[]string](t, pool, `select coalesce(array_agg(message order by event_no), '{}') from trapeze.job_event where job = $1 and event = $2`, id, event)
}

// The events that a handler has emitted are written before the event that records the end of the run, no matter how the run ends.
func TestBufferedEventsBeforeEnd(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t)
	returns := map[string]func() (*runner.Outcome, error){
		"success": func() (*runner.Outcome, error) { return nil, nil },
		"failure": func() (*runner.Outcome, error) { return nil, job.Permanent(errors.New("no")) },
		"retry":   func() (*runner.Outcome, error) { return nil, errors.New("once more") },
		"later":   func() (*runner.Outcome, error) { return runner.Snooze(time.Millisecond, "later"), nil },
		"panic":   func() (*runner.Outcome, error) { panic("torn") },
		"goexit":  func() (*runner.Outcome, error) { runtime.Goexit(); return nil, nil },
		"writes": func() (*runner.Outcome, error) {
			return runner.Done(nil).InTx(func(context.Context, pgx.Tx) error { return nil }), nil
		},
	}
	handlers := map[string]handler{}
	for name, end := range returns {
		handlers[name] = func(ctx context.Context, j *raw) (*runner.Outcome, error) {
			for i := range 5 {
				if err := j.Emit(ctx, "tick", "", fmt.Sprintf("%d.%d", j.Fence(), i), nil); err != nil {
					return nil, err
				}
			}
			if j.Fence() == 2 {
				return nil, nil
			}
			return end()
		}
	}
	r := start(t, pool, runner.Options{}, handlers, runner.Retry(2, soon))
	for name := range returns {
		t.Run(name, func(t *testing.T) {
			is := is.New(t)
			id := enqueue(t, r, rawArgs(name))
			j := waitEnded(t, r, id)
			var want []string
			for fence := range j.Fence {
				for i := range 5 {
					want = append(want, fmt.Sprintf("%d.%d", fence+1, i))
				}
			}
			is.Equal(emitted(t, pool, id, "tick"), want) // all events of every run, in order
			names := eventsOf(t, r, id)
			is.True(strings.HasPrefix(names[len(names)-1], "job.")) // the last event is the job's end
		})
	}
	checkHistory(t, pool, r)
}

func TestEventsBeforeTransaction(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	pool := pgtest.Pool(t)
	r := start(t, pool, runner.Options{}, map[string]handler{"k": func(ctx context.Context, j *raw) (*runner.Outcome, error) {
		emit := func(text string) error { return j.Emit(ctx, "tick", "", text, nil) }
		for round := range 3 {
			if err := errors.Join(emit(fmt.Sprint(round, " before")), emit(fmt.Sprint(round, " just before"))); err != nil {
				return nil, err
			}
			err := j.Tx(ctx, func(pgx.Tx) error {
				if err := emit(fmt.Sprint(round, " in it")); err != nil || round != 1 {
					return err
				}
				return errors.New("not this one")
			}, nil)
			if (err != nil) != (round == 1) {
				return nil, err
			}
		}
		return nil, emit("after")
	}})
	id := enqueue(t, r, rawArgs("k"))
	is.Equal(waitEnded(t, r, id).State, job.Succeeded)
	is.Equal(emitted(t, pool, id, "tick"), []string{"0 before", "0 just before", "0 in it", "1 before", "1 just before",
		"1 in it", "2 before", "2 just before", "2 in it", "after"})
	checkHistory(t, pool, r)
}

func TestBufferedEventWriteFailure(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	pool := pgtest.Pool(t)
	first, go1 := make(chan struct{}), make(chan struct{})
	got := make(chan error, 3)
	r := start(t, pool, runner.Options{}, map[string]handler{"k": func(ctx context.Context, j *raw) (*runner.Outcome, error) {
		got <- j.Emit(ctx, "first", "", "", nil)
		close(first)
		<-go1
		got <- j.Emit(ctx, "second", "", "", nil) // buffered, because the first event was written a moment ago
		var err error
		for err == nil && ctx.Err() == nil {
			err = j.Emit(ctx, "third", "", "", nil)
			runtime.Gosched()
		}
		got <- err
		return nil, nil
	}}, runner.Timeout(20*time.Second))
	id := enqueue(t, r, rawArgs("k"))
	<-first
	exec(t, pool, `alter table trapeze.job_events add constraint shut check (event not in ('second', 'third'))`)
	close(go1)
	is.NoErr(<-got)
	<-got // the second Emit's result; on a slow machine, its event is written immediately
	err := <-got
	is.True(err != nil && strings.Contains(err.Error(), "shut")) // the error names the constraint
	is.Equal(waitEnded(t, r, id).State, job.Succeeded)
	checkHistory(t, pool, r)
}
