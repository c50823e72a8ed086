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

// Why a stream ends before what it is about does. Whoever reads it goes on by its latest cursor.
var (
	ErrClosing = errors.New("this pod is stopping")
	ErrStuck   = errors.New("the database did not respond for too long")
	ErrMoved   = errors.New("the database's history has changed: the stream restarts, and events may be missing")
	ErrSlow    = bus.ErrSlow // the reader did not keep up
)

// room is how many batches wait for a stream that does not take them. There is one batch a look of the tail at most, and looks are
// 20 ms apart at the least and 250 ms in general.
const room = 128

// Options configure a [Feed]. The zero value works.
type Options struct {
	// Every is how often the tail looks while somebody watches. Default 250ms.
	Every time.Duration
	// PatientFor is how long the tail's looks may fail before everybody is cut off. Default 1m.
	PatientFor time.Duration
	Logger     *slog.Logger       // default slog.Default()
	Metrics    *telemetry.Metrics // default: some of its own
}

// Feed tells what happens. Its methods are safe for concurrent use.
type Feed struct {
	store *store.Store
	opts  Options
	bus   *bus.Bus[topic, *batch]
	knock wait.Signal // asks the tail for a look

	mu      sync.Mutex
	tail    *tail        // nil: nobody watches
	joining []chan error // told when the next look to begin has ended
	closed  bool
	closing chan struct{} // closed with closed
}

// topic is what somebody watches: a job, a pipeline, or everything.
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

// New returns a feed that reads with s. It starts nothing before somebody watches.
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

// Wake has the tail look soon: something may have happened. It costs nothing when nobody watches.
func (f *Feed) Wake() {
	f.knock.Set()
}

// Interrupt ends all streams: the pod has lost the database, so a stream would show an old state. Streams may be opened again.
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

// join has somebody listen to a topic, and returns once whatever is read from now on and what the tail hands out leave no gap between
// them: when a look that knows of the topic has ended. It also returns where the tail stood then.
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

// leave ends a listening; the last one ends the tail, and waits for that.
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

// watched lists what is watched, and who waits for a look of t's that begins now.
func (f *Feed) watched(t *tail) (jobs, pipelines []int64, all bool, joining []chan error) {
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
	if f.tail == t { // else it is about to end
		joining, f.joining = f.joining, nil
	}
	return jobs, pipelines, all, joining
}
