package feed

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/trapeze-run/trapeze/internal/bus"
	"github.com/trapeze-run/trapeze/internal/store"
	"github.com/trapeze-run/trapeze/internal/telemetry"
	"github.com/trapeze-run/trapeze/internal/wait"
)

// Reasons why a stream ends early. Its reader continues from its latest cursor.
var (
	ErrClosing = errors.New("this pod is stopping")
	ErrStuck   = errors.New("the database did not respond for too long")
	ErrMoved   = errors.New("the database's history has changed: the stream restarts, and events may be missing")
	ErrSlow    = bus.ErrSlow // the reader did not keep up
)

// room is how many batches are buffered for a slow stream. Each poll of the tail makes at most one batch, and polls are at least 20
// ms and usually 250 ms apart.
const room = 128

// Options configure a [Feed]. The zero value works.
type Options struct {
	// Every is the polling interval of the tail while there are clients. Default 250ms.
	Every time.Duration
	// PatientFor is how long the tail's polls may fail before all streams are ended. Default 1m.
	PatientFor time.Duration
	Logger     *slog.Logger       // default slog.Default()
	Metrics    *telemetry.Metrics // default: metrics that are not exported
}

// Feed delivers events. Its methods are safe for concurrent use.
type Feed struct {
	store *store.Store
	opts  Options
	bus   *bus.Bus[topic, *batch]
	knock wait.Signal // requests a poll of the tail

	mu      sync.Mutex
	tail    *tail        // nil: no client watches
	joining []chan error // notified after the next poll that begins
	closed  bool
	closing chan struct{} // closed with closed
}

// topic is the subject of a stream: a job, a pipeline, or everything.
type topic struct {
	kind byte
	id   int64
}

// The kinds of topics, which are also those of cursors.
const (
	aJob       = 'j'
	aPipeline  = 'p'
	everything = 'g'
)

// New returns a feed that reads with s. It starts no goroutine until a stream is opened.
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
	return &Feed{store: s, opts: o, bus: bus.New[topic, *batch](), knock: wait.NewSignal(), closing: make(chan struct{})}
}

// Wake makes the tail poll soon, because there may be new events. It costs nothing without clients.
func (f *Feed) Wake() {
	f.knock.Set()
}

// Interrupt ends all streams: the pod has lost the database, so a stream would show outdated data. New streams may be opened.
func (f *Feed) Interrupt() { f.bus.CutAll(ErrStuck) }

// Close ends all streams and the tail; no stream can be opened any more. It may be called again.
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

// join subscribes to a topic. It returns after a poll that knows of the topic has ended: later reads and the batches of the tail then
// leave no gap between them. It also returns the tail's position at that time.
func (f *Feed) join(ctx context.Context, t topic) (*bus.Listener[topic, *batch], stand, error) {
	f.mu.Lock()
	if f.closed {
		f.mu.Unlock()
		return nil, stand{}, ErrClosing
	}
	listener := f.bus.Listen(t, room)
	looked := make(chan error, 1)
	f.joining = append(f.joining, looked)
	if f.tail == nil {
		f.tail = startTail(f)
	}
	f.Wake()
	tail := f.tail
	f.mu.Unlock()
	var err error
	select {
	case err = <-looked:
	case <-ctx.Done():
		err = ctx.Err()
	case <-f.closing:
		err = ErrClosing
	}
	if err != nil {
		f.leave(listener)
		return nil, stand{}, err
	}
	return listener, tail.standing(), nil
}

// leave ends a subscription. The last one stops the tail, and waits for it.
func (f *Feed) leave(l *bus.Listener[topic, *batch]) {
	l.Close()
	f.mu.Lock()
	var last *tail
	if len(f.bus.Topics()) == 0 {
		last, f.tail = f.tail, nil
	}
	f.mu.Unlock()
	last.stop()
}

// topics returns the watched topics, and the channels of those that wait for a poll that t begins now.
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
	if f.tail == t { // otherwise it is about to end
		joining, f.joining = f.joining, nil
	}
	return jobs, pipelines, all, joining
}
