// Package feed delivers events to clients as they happen: the events of a job, of a pipeline, or all events.
//
//	job_events ──tail──▶ bus ──▶ streams, one per client
//	     └──────────backlog in pages────────▶
//
// Regardless of the number of clients, a single goroutine of the pod, the tail, reads new events. It uses one statement for all watched
// jobs and pipelines, and another for the feed of all events if a client watches it. It runs only while there are clients. A stream first
// reads the backlog in pages, and then receives events from the tail. Clients do not hold database connections.
//
// A job's events are numbered, and a pipeline's events are distinguished by the transactions that wrote them (view.Seen). Both are therefore
// delivered immediately, regardless of other transactions. The feed of all events follows the order of transaction IDs, and stops before
// the oldest open transaction. Every event carries a cursor from which any pod can continue without gaps or repetitions.
package feed

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/trapeze-run/trapeze/internal/routine"
	"github.com/trapeze-run/trapeze/internal/store"
	"github.com/trapeze-run/trapeze/internal/telemetry"
)

// Errors returned by streams that end early. Clients can continue from their latest cursor.
var (
	ErrClosing = errors.New("this pod is stopping")
	ErrStuck   = errors.New("the database did not respond for too long")
	ErrMoved   = errors.New("the database's history has changed: the stream restarts, and events may be missing")
)

// bufferedBatches is the number of batches buffered for a slow stream. A poll produces a batch per 1,000 events, and one for progress.
// Polls are usually 250 ms apart, and never less than 20 ms.
const bufferedBatches = 128

// Options configures a [Feed]. The zero value is usable.
type Options struct {
	// Every is the interval at which the tail polls while there are clients. The default is 250ms.
	Every time.Duration
	// PatientFor is the time for which the tail's polls may fail before all streams are closed. The default is 1m.
	PatientFor time.Duration
	Logger     *slog.Logger       // default is slog.Default()
	Metrics    *telemetry.Metrics // default is metrics that are not exported
}

// Feed delivers events. It is safe for concurrent use.
type Feed struct {
	store *store.Store
	opts  Options
	bus   *Bus[topic, *batch]
	knock routine.Signal // requests a poll of the tail

	mu      sync.Mutex
	tail    *tail        // nil if no client is watching
	joining []chan error // receive the result of the next poll that starts
	closed  bool
	closing chan struct{} // closed when closed becomes true
}

// topic is a stream's subject: a job, a pipeline, or all events.
type topic struct {
	kind byte
	id   int64
}

// The kinds of topics. Cursors use the same letters.
const (
	aJob       = 'j'
	aPipeline  = 'p'
	everything = 'g'
)

// New returns a feed that reads from s. The feed starts no goroutine until a stream is opened.
func New(s *store.Store, o Options) *Feed {
	if o.Every <= 0 {
		o.Every = 250 * time.Millisecond
	}
	if o.PatientFor <= 0 {
		o.PatientFor = time.Minute
	}
	if o.Logger == nil {
		o.Logger = slog.Default()
	}
	if o.Metrics == nil {
		o.Metrics = telemetry.New()
	}
	return &Feed{store: s, opts: o, bus: NewBus[topic, *batch](), knock: routine.NewSignal(), closing: make(chan struct{})}
}

// Wake makes the tail poll soon, because there may be new events. Without clients, it has no effect.
func (f *Feed) Wake() {
	f.knock.Set()
}

// Watched reports whether there are streams.
func (f *Feed) Watched() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.tail != nil
}

// Interrupt closes all streams, because the pod has lost its database connection and the streams would show outdated data. New streams can
// still be opened.
func (f *Feed) Interrupt() { f.bus.CutAll(ErrStuck) }

// Close stops the tail, closes all streams and prevents new ones. It can be called more than once.
func (f *Feed) Close() {
	f.mu.Lock()
	if !f.closed {
		f.closed = true
		close(f.closing)
	}
	last := f.tail
	f.tail = nil
	f.mu.Unlock()
	f.bus.CutAll(ErrClosing)
	last.stop()
}

// join subscribes to a topic, and waits until a poll that includes the topic has finished, so that there is no gap between later reads and
// the tail's batches. It also returns the tail's position after that poll.
func (f *Feed) join(ctx context.Context, t topic) (*Listener[topic, *batch], position, error) {
	f.mu.Lock()
	if f.closed {
		f.mu.Unlock()
		return nil, position{}, ErrClosing
	}
	listener := f.bus.Listen(t, bufferedBatches)
	polled := make(chan error, 1)
	f.joining = append(f.joining, polled)
	if f.tail == nil {
		f.tail = startTail(f)
	}
	f.Wake()
	tail := f.tail
	f.mu.Unlock()
	var err error
	select {
	case err = <-polled:
	case <-ctx.Done():
		err = ctx.Err()
	case <-f.closing:
		err = ErrClosing
	}
	if err != nil {
		f.leave(listener)
		return nil, position{}, err
	}
	return listener, tail.position(), nil
}

// leave ends a subscription. If it was the last, leave stops the tail and waits for it. Subscribers that were disconnected while waiting
// for a poll get an error, because no poll follows.
func (f *Feed) leave(l *Listener[topic, *batch]) {
	l.Close()
	f.mu.Lock()
	var last *tail
	if len(f.bus.Topics()) == 0 {
		last, f.tail = f.tail, nil
		for _, c := range f.joining {
			c <- ErrStuck
		}
		f.joining = nil
	}
	f.mu.Unlock()
	last.stop()
}

// topics returns the watched topics, and the channels of subscribers waiting for the poll that t is about to make.
func (f *Feed) topics(t *tail) (jobs, pipelines []int64, all bool, joining []chan error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, t := range f.bus.Topics() {
		switch t.kind {
		case aJob:
			jobs = append(jobs, t.id)
		case aPipeline:
			pipelines = append(pipelines, t.id)
		default:
			all = true
		}
	}
	if f.tail == t { // or else t is about to stop
		joining, f.joining = f.joining, nil
	}
	return jobs, pipelines, all, joining
}
