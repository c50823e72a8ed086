package journal

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/internal/store"
	"github.com/trapeze-run/trapeze/job"
)

// chronicle is a fake store that records which events and progress were written, and when.
type chronicle struct {
	began  time.Time
	mu     sync.Mutex
	writes []string // for example "0s: a b"
	err    error    // error of the next write
	done   []int64  // progress values
}

func (c *chronicle) Emit(_ context.Context, _ job.Lease, list ...store.Emission) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := c.err; err != nil {
		c.err = nil
		return err
	}
	var names []string
	for _, e := range list {
		names = append(names, e.Event)
	}
	c.writes = append(c.writes, time.Since(c.began).String()+": "+strings.Join(names, " "))
	return nil
}

// written returns what has been written so far.
func (c *chronicle) written() []string {
	synctest.Wait()
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.writes)
}

// fail makes the next write fail.
func (c *chronicle) fail(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.err = err
}

func (c *chronicle) EmitIn(ctx context.Context, _ store.DB, claim job.Lease, list ...store.Emission) error {
	return c.Emit(ctx, claim, list...)
}

func (c *chronicle) EmitMany(ctx context.Context, list []store.ClaimEmission) (map[job.Lease]bool, error) {
	written := map[job.Lease]bool{}
	for _, e := range list {
		if err := c.Emit(ctx, e.Lease, e.Emission); err != nil {
			return nil, err
		}
		written[e.Lease] = true
	}
	return written, nil
}

func (c *chronicle) Progress(_ context.Context, _ job.Lease, p job.Progress) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.done = append(c.done, *p.Done)
	return nil
}

// writer returns a writer whose store is the chronicle, and a claim to use with it.
func (c *chronicle) writer() (*Writer, Claim) {
	return NewWriter(c, slog.New(slog.DiscardHandler), claim{}.Check), claim{}
}

// claim is a claim whose lease is never lost.
type claim struct{}

func (claim) ID() job.Lease         { return job.Lease{JobID: 1, Fence: 1} }
func (claim) Lost() bool            { return false }
func (claim) Check(err error) error { return err }

// inBubble runs do in a synctest bubble with an Events that writes to a chronicle, and closes the Events at the end.
func inBubble(t *testing.T, do func(is *is.I, c *chronicle, s *Events, emit func(names ...string))) {
	synctest.Test(t, func(t *testing.T) {
		is := is.New(t)
		c := &chronicle{began: time.Now()}
		s := new(Events)
		s.Init(c.writer())
		defer s.Close()
		do(is, c, s, func(names ...string) {
			for _, name := range names {
				is.NoErr(s.Add(t.Context(), store.Emission{Event: name}))
			}
		})
	})
}

func TestEventBatchAfterFirstEvent(t *testing.T) {
	inBubble(t, func(is *is.I, c *chronicle, s *Events, emit func(...string)) {
		emit("a", "b", "c")
		is.Equal(c.written(), []string{"0s: a"})
		time.Sleep(interval - 1)
		emit("d")
		time.Sleep(2 * time.Nanosecond)
		is.Equal(c.written(), []string{"0s: a", "250ms: b c d"}) // in order, after the interval
		emit("e")
		time.Sleep(time.Second)
		is.Equal(c.written()[2:], []string{"500ms: e"})
		emit("f")
		is.Equal(c.written()[3:], []string{"1.250000001s: f"}) // immediately after a quiet period
	})
}

func TestHeldEventsAtRunEnd(t *testing.T) {
	inBubble(t, func(is *is.I, c *chronicle, s *Events, emit func(...string)) {
		emit("a", "b", "c")
		s.Close()
		is.Equal(c.written(), []string{"0s: a", "0s: b c"})
		err := s.Add(context.Background(), store.Emission{Event: "d"})
		is.True(errors.Is(err, job.ErrLeaseLost)) // Close rejects later events
	})
}

func TestEmitBackpressure(t *testing.T) {
	inBubble(t, func(is *is.I, c *chronicle, s *Events, emit func(...string)) {
		began := time.Now()
		for i := range 1 + maxHeldEvents {
			emit(strconv.Itoa(i))
		}
		is.Equal(time.Since(began), time.Duration(0)) // holding this many events does not block
		ctx, cancel := context.WithTimeout(context.Background(), interval/2)
		defer cancel()
		err := s.Add(ctx, store.Emission{Event: "never"})
		is.True(errors.Is(err, context.DeadlineExceeded)) // Add waits no longer than its context allows
		emit("next")
		is.Equal(time.Since(began), interval) // Add waits only until the held events have been taken
		is.Equal(len(c.written()), 2)
		is.True(strings.HasSuffix(c.written()[1], " "+strconv.Itoa(maxHeldEvents)))
		large := store.Emission{Event: "large", Fields: make([]byte, maxHeldBytes)}
		is.NoErr(s.Add(context.Background(), large)) // waits until "next" has been written on its own
		is.Equal(time.Since(began), 2*interval)
	})
}

func TestLateEventWriteError(t *testing.T) {
	inBubble(t, func(is *is.I, c *chronicle, s *Events, emit func(...string)) {
		torn := errors.New("torn")
		c.fail(torn)
		add := func(name string) error { return s.Add(context.Background(), store.Emission{Event: name}) }
		is.Equal(add("a"), torn) // the error from an immediate write
		emit("b")
		c.fail(torn)
		time.Sleep(interval)
		is.Equal(len(c.written()), 0)
		is.Equal(add("c"), torn) // the error of writing b
		emit("d")
		time.Sleep(interval)
		is.Equal(c.written(), []string{"500ms: d"}) // after the error has been returned, writing continues
	})
}

func TestTransactionAfterHeldEvents(t *testing.T) {
	inBubble(t, func(is *is.I, c *chronicle, s *Events, emit func(...string)) {
		emit("a", "b")
		is.NoErr(s.Begin(context.Background()))
		is.Equal(c.written(), []string{"0s: a", "0s: b"})
		emit("c")
		is.NoErr(s.Begin(context.Background())) // the second attempt
		emit("c", "d")
		is.NoErr(s.WriteIn(context.Background(), nil)) // the first attempt's events have been dropped
		emit("late")                                   // from another goroutine of the handler, during the commit
		s.End(true)
		is.Equal(c.written()[2:], []string{"0s: c d", "0s: late"})
		time.Sleep(interval)
		emit("e")
		is.Equal(c.written()[4:], []string{"250ms: e"})
		is.NoErr(s.Begin(context.Background()))
		emit("f")
		is.NoErr(s.WriteIn(context.Background(), nil))
		s.End(false) // the transaction was rolled back
		is.Equal(c.written()[5:], []string{"250ms: f", "250ms: f"})
	})
}

func TestLateEventReplyLost(t *testing.T) {
	inBubble(t, func(is *is.I, c *chronicle, s *Events, emit func(...string)) {
		emit("a", "b")
		c.fail(io.ErrUnexpectedEOF) // the connection broke after the statement was sent
		time.Sleep(time.Minute)
		is.Equal(c.written(), []string{"0s: a"}) // b may have been written
	})
}
