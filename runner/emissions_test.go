package runner

import (
	"context"
	"errors"
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

// chronicle is a history that notes when which events were written.
type chronicle struct {
	began  time.Time
	mu     sync.Mutex
	writes []string // "0s: a b"
	err    error    // of the next write
}

func (c *chronicle) writeEvents(_ context.Context, list []store.Emission) error {
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

// written is what was written by now.
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

func (c *chronicle) writeHeld(list []store.Emission) error {
	return c.writeEvents(context.Background(), list)
}

// inBubble runs do in a bubble of time of its own, on emissions to a chronicle, and closes them.
func inBubble(t *testing.T, do func(is *is.I, c *chronicle, s *emissions, emit func(names ...string))) {
	synctest.Test(t, func(t *testing.T) {
		is := is.New(t)
		c := &chronicle{began: time.Now()}
		s := &emissions{to: c}
		defer s.close()
		do(is, c, s, func(names ...string) {
			for _, name := range names {
				is.NoErr(s.add(t.Context(), store.Emission{Event: name}))
			}
		})
	})
}

func TestTheFirstEventIsWrittenAtOnceAndThoseThatFollowTogether(t *testing.T) {
	inBubble(t, func(is *is.I, c *chronicle, s *emissions, emit func(...string)) {
		emit("a", "b", "c")
		is.Equal(c.written(), []string{"0s: a"})
		time.Sleep(emitEvery - 1)
		emit("d")
		time.Sleep(2 * time.Nanosecond)
		is.Equal(c.written(), []string{"0s: a", "250ms: b c d"}) // in order, when the moment is over
		emit("e")
		time.Sleep(time.Second)
		is.Equal(c.written()[2:], []string{"500ms: e"})
		emit("f")
		is.Equal(c.written()[3:], []string{"1.250000001s: f"}) // after a quiet time again at once
	})
}

func TestTheEndOfARunWritesWhatIsHeldWithoutWaitingForTheMoment(t *testing.T) {
	inBubble(t, func(is *is.I, c *chronicle, s *emissions, emit func(...string)) {
		emit("a", "b", "c")
		s.close()
		is.Equal(c.written(), []string{"0s: a", "0s: b c"})
		err := s.add(context.Background(), store.Emission{Event: "d"})
		is.True(errors.Is(err, job.ErrLeaseLost)) // nothing after the end
	})
}

func TestAHandlerThatEmitsTooMuchWaits(t *testing.T) {
	inBubble(t, func(is *is.I, c *chronicle, s *emissions, emit func(...string)) {
		began := time.Now()
		for i := range 1 + heldEvents {
			emit(strconv.Itoa(i))
		}
		is.Equal(time.Since(began), time.Duration(0)) // as many are held
		ctx, cancel := context.WithTimeout(context.Background(), emitEvery/2)
		defer cancel()
		err := s.add(ctx, store.Emission{Event: "never"})
		is.True(errors.Is(err, context.DeadlineExceeded)) // it waits no longer than its context
		emit("next")
		is.Equal(time.Since(began), emitEvery) // and no longer than until what is held has been written
		is.Equal(len(c.written()), 2)
		is.True(strings.HasSuffix(c.written()[1], " "+strconv.Itoa(heldEvents)))
		large := store.Emission{Event: "large", Fields: make([]byte, heldBytes)}
		is.NoErr(s.add(context.Background(), large)) // waits for "next" alone to be written
		is.Equal(time.Since(began), 2*emitEvery)
	})
}

func TestTheErrorOfALateWriteComesWithTheNextEmit(t *testing.T) {
	inBubble(t, func(is *is.I, c *chronicle, s *emissions, emit func(...string)) {
		torn := errors.New("torn")
		c.fail(torn)
		add := func(name string) error { return s.add(context.Background(), store.Emission{Event: name}) }
		is.Equal(add("a"), torn) // the handler's own write
		emit("b")
		c.fail(torn)
		time.Sleep(emitEvery)
		is.Equal(len(c.written()), 0)
		is.Equal(add("c"), torn) // for b
		emit("d")
		time.Sleep(emitEvery)
		is.Equal(c.written(), []string{"500ms: d"}) // once told, the events go on
	})
}

func TestATransactionBeginsWhenWhatWasEmittedBeforeIsWritten(t *testing.T) {
	inBubble(t, func(is *is.I, c *chronicle, s *emissions, emit func(...string)) {
		emit("a", "b")
		is.NoErr(s.begin(context.Background()))
		is.Equal(c.written(), []string{"0s: a", "0s: b"})
		emit("c")
		is.NoErr(s.begin(context.Background())) // a second try
		emit("c", "d")
		list := s.take(true)
		is.Equal(len(list), 2) // what a try emits counts once
		is.Equal(len(c.written()), 2)
		time.Sleep(emitEvery)
		emit("e")
		is.Equal(c.written()[2:], []string{"250ms: e"})
	})
}
