package feed

import (
	"context"

	"github.com/trapeze-run/trapeze/internal/store/view"
)

// allSource follows all events in order of their transaction IDs, up to the oldest open transaction.
type allSource struct {
	feed      *Feed
	epoch     string
	submitter string // empty for all jobs
	at        view.Position
	now       bool // skip the backlog
}

// All opens a stream of all events, or of the events of a principal's jobs. The stream starts after the given cursor, at [Beginning] or at
// [Now]. An empty cursor means [Now]. The stream never ends normally. All returns [job.ErrInvalid] if the cursor is invalid, [ErrClosing]
// if the pod is stopping, and [ErrStuck] if the database has not responded for too long.
func (f *Feed) All(ctx context.Context, submitter, after string) (*Stream, error) {
	r := &allSource{feed: f, submitter: submitter}
	var epoch string
	given := after != Now && after != Beginning && after != ""
	if given {
		var err error
		if epoch, r.at, err = ofAll(after); err != nil {
			return nil, err
		}
	}
	return f.open(ctx, topic{kind: everything}, func(now position) (s *Stream, err error) {
		r.epoch = now.epoch
		s = &Stream{Snapshot: struct{}{}, source: r}
		if given {
			if s.Reset, err = f.check(ctx, epoch, r.at.Xid, r.at.Xid); err != nil {
				return nil, err
			}
		}
		if s.Reset != "" || !given && after != Beginning {
			r.at, r.now = now.last, true
		}
		s.Cursor = r.cursor().String()
		return s, nil
	})
}

func (r *allSource) cursor() cursor { return cursor{r.epoch, everything, r.at.String()} }

func (r *allSource) readBacklog(ctx context.Context) ([]Item, bool, error) {
	if r.now {
		return nil, false, nil
	}
	page, err := view.FeedPage(ctx, r.feed.store, r.at, r.submitter, pageSize)
	if err != nil {
		return nil, false, err
	}
	events, err := encodeAll(page)
	if err != nil {
		return nil, false, err
	}
	return r.take(&batch{events: events}), len(page) == pageSize, nil
}

func (r *allSource) take(b *batch) (list []Item) {
	for _, e := range b.events {
		at := e.Position()
		if !at.After(r.at) {
			continue
		}
		r.at = at
		if r.submitter == "" || r.submitter == e.Submitter {
			list = append(list, e.item(r.cursor()))
		}
	}
	return list
}

func (r *allSource) end() any { return nil }
