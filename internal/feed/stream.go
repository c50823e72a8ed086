package feed

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"sync"
	"time"

	"github.com/trapeze-run/trapeze/internal/bus"
	"github.com/trapeze-run/trapeze/internal/store/view"
	"github.com/trapeze-run/trapeze/job"
)

// Item is one thing that a stream tells.
type Item struct {
	ID    string // the cursor behind it; empty: it is no part of the history
	Event string
	Data  []byte // JSON, on one line
}

// Stream tells what happens to a job, to a pipeline, or at all. Its methods are for one goroutine. Close it.
type Stream struct {
	// Snapshot is what is watched as it was before the first item: a [job.Job], a [job.Pipeline], or an empty struct. Items that follow may
	// be older: a history is told from where the reader left it.
	Snapshot any
	// Cursor is where the stream begins.
	Cursor string
	// Reset says why the stream does not go on from the cursor that was given; empty: it does.
	Reset string

	feed     *Feed
	listener *bus.Listener[topic, *batch]
	road     road
	live     bool
	over     bool
	closed   sync.Once
}

// road is how streams of one kind go on.
type road interface {
	// behind reads a page of what was written before the stream listened, and reports whether there may be another.
	behind(ctx context.Context) (list []Item, more bool, err error)
	// take takes what the tail hands out.
	take(*batch) []Item
	// end is what is told last, when nothing follows; nil: something may.
	end() any
}

// Why a stream begins anew.
const (
	otherHistory = "the cursor is from another history: the database was restored, or a standby was promoted, and events may be missing"
	unknown      = "the cursor is not from this database"
	tooOld       = "the cursor is older than the events that are kept"
)

// open begins a stream.
func (f *Feed) open(ctx context.Context, t topic, begin func(stand) (*Stream, error)) (*Stream, error) {
	listener, stand, err := f.join(ctx, t)
	if err != nil {
		return nil, err
	}
	s, err := begin(stand)
	if err != nil {
		f.leave(listener)
		return nil, err
	}
	s.feed, s.listener = f, listener
	f.opts.Metrics.StreamClients.Inc()
	return s, nil
}

// Close ends the stream. It may be called again, and from another goroutine.
func (s *Stream) Close() {
	s.closed.Do(func() {
		s.feed.leave(s.listener)
		s.feed.opts.Metrics.StreamClients.Dec()
	})
}

// Dropped notes that the stream ends because its reader does not take what it is given.
func (s *Stream) Dropped() { s.feed.opts.Metrics.StreamsDropped.Inc() }

// Next waits for items, and returns none when nothing has happened for a while. After the last, named end, of what is over it returns
// [io.EOF]; when the stream is ended before, [ErrClosing], [ErrSlow], [ErrMoved] or [ErrStuck], and ctx's error when that ends.
func (s *Stream) Next(ctx context.Context, while time.Duration) ([]Item, error) {
	silence := time.NewTimer(while)
	defer silence.Stop()
	for {
		if s.over {
			return nil, io.EOF
		}
		list, silent, err := s.step(ctx, silence.C)
		if errors.Is(err, ErrSlow) {
			s.Dropped()
		}
		if err != nil {
			return nil, err
		}
		if end := s.road.end(); s.live && end != nil {
			data, err := json.Marshal(end)
			if err != nil {
				return nil, err
			}
			s.over = true
			return append(list, Item{Event: "end", Data: data}), nil
		}
		if len(list) > 0 || silent {
			return list, nil
		}
	}
}

// step reads a page of what is behind, or takes what the tail hands out next, unless nothing comes before the silence is over.
func (s *Stream) step(ctx context.Context, silence <-chan time.Time) (list []Item, silent bool, err error) {
	if !s.live {
		select {
		case <-s.feed.closing:
			return nil, false, ErrClosing
		default:
		}
		list, more, err := s.road.behind(ctx)
		s.live = !more && err == nil
		return list, false, err
	}
	select {
	case b, ok := <-s.listener.Queue():
		if !ok {
			return nil, false, s.listener.Err()
		}
		if b.note != nil {
			return []Item{{Event: "progress", Data: b.note}}, false, nil
		}
		return s.road.take(b), false, nil
	case <-silence:
		return nil, true, nil
	case <-ctx.Done():
		return nil, false, ctx.Err()
	}
}

// item tells an event.
func (e *event) item(cursor cursor) Item {
	return Item{ID: cursor.String(), Event: e.Event.Event, Data: e.data}
}

// encodeAll gives events their JSON.
func encodeAll(list []view.News) ([]*event, error) {
	events := make([]*event, len(list))
	for i, n := range list {
		e, err := encode(n)
		if err != nil {
			return nil, err
		}
		events[i] = e
	}
	return events, nil
}

// ended is what is told last.
type ended struct {
	State  job.State  `json:"state,omitempty"`
	Status job.Status `json:"status,omitempty"`
}
