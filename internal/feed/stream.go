package feed

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"sync"
	"time"

	"github.com/trapeze-run/trapeze/internal/store/view"
	"github.com/trapeze-run/trapeze/job"
)

// Item is a message of a stream.
type Item struct {
	ID    string // the cursor after the item; empty if the item is not part of the history
	Event string
	Data  []byte // JSON, on one line
}

// Stream delivers the events of a job, of a pipeline, or all events. Except for Close, it is not safe for concurrent use. The caller must
// close it.
type Stream struct {
	// Snapshot is the watched object's state when the stream was opened: a [job.JobRow], a [job.Pipeline], or an empty struct. The first items
	// can be older than the snapshot, because the backlog starts at the client's cursor.
	Snapshot any
	// Cursor is the position at which the stream starts.
	Cursor string
	// Reset is the reason why the stream does not continue from the given cursor, or empty if it does.
	Reset string

	feed     *Feed
	listener *Listener[topic, *batch]
	source   source
	live     bool
	over     bool
	closed   sync.Once
}

// source is the interface that each kind of stream implements.
type source interface {
	// readBacklog reads a page of the backlog from before the subscription, and reports whether there may be more pages.
	readBacklog(ctx context.Context) (list []Item, more bool, err error)
	// take converts a batch from the tail to items.
	take(*batch) []Item
	// end returns the content of the stream's last item once no others can follow, and nil until then.
	end() any
}

// Reasons why a stream is reset.
const (
	otherHistory = "the cursor belongs to another history: the database was restored, or a standby was promoted, and events may be missing"
	unknown      = "the cursor is not from this database"
	tooOld       = "the cursor is older than the events that are kept"
)

// open subscribes to a topic and opens a stream.
func (f *Feed) open(ctx context.Context, t topic, begin func(position) (*Stream, error)) (*Stream, error) {
	listener, position, err := f.join(ctx, t)
	if err != nil {
		return nil, err
	}
	s, err := begin(position)
	if err != nil {
		f.leave(listener)
		return nil, err
	}
	s.feed, s.listener = f, listener
	f.opts.Metrics.StreamClients.Inc()
	return s, nil
}

// Close closes the stream. It can be called more than once, and from another goroutine.
func (s *Stream) Close() {
	s.closed.Do(func() {
		s.feed.leave(s.listener)
		s.feed.opts.Metrics.StreamClients.Dec()
	})
}

// Dropped counts a stream that was closed because its client was too slow.
func (s *Stream) Dropped() { s.feed.opts.Metrics.StreamsDropped.Inc() }

// Next blocks until there are items. If there are none for the duration idle, it returns an empty list. After the last item, named end, it
// returns [io.EOF]. If the stream ends early, it returns [ErrClosing], [ErrSlow], [ErrMoved], [ErrStuck] or ctx's error.
func (s *Stream) Next(ctx context.Context, idle time.Duration) ([]Item, error) {
	silence := time.NewTimer(idle)
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
		if end := s.source.end(); s.live && end != nil {
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

// step returns the items of the next page of the backlog or, after the backlog, of the tail's next batch. If silence fires first, it
// returns no items.
func (s *Stream) step(ctx context.Context, silence <-chan time.Time) (list []Item, silent bool, err error) {
	if !s.live {
		select {
		case <-s.feed.closing:
			return nil, false, ErrClosing
		default:
		}
		list, more, err := s.source.readBacklog(ctx)
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
		return s.source.take(b), false, nil
	case <-silence:
		return nil, true, nil
	case <-ctx.Done():
		return nil, false, ctx.Err()
	}
}

// item converts an event to an item.
func (e *event) item(cursor cursor) Item {
	return Item{ID: cursor.String(), Event: e.Event.Event, Data: e.data}
}

// encodeAll encodes events as JSON.
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

// ended is the content of a stream's final item.
type ended struct {
	State  job.State  `json:"state,omitempty"`
	Status job.Status `json:"status,omitempty"`
}
