package feed

import (
	"context"

	"github.com/trapeze-run/trapeze/internal/store/view"
)

// allRoad follows the order of transaction ids, below those that are open.
type allRoad struct {
	feed      *Feed
	epoch     string
	submitter string // empty: everybody
	at        view.Position
	now       bool // nothing is behind
}

// All opens the stream of everything, or of the jobs that one principal submitted: after a cursor, from [Beginning], or from [Now], which
// an empty cursor is too. It never ends by itself. Errors as of [Feed.Job].
func (f *Feed) All(ctx context.Context, submitter, after string) (*Stream, error) {
	r := &allRoad{feed: f, submitter: submitter}
	var epoch string
	given := after != Now && after != Beginning && after != ""
	if given {
		var err error
		if epoch, r.at, err = ofAll(after); err != nil {
			return nil, err
		}
	}
	return f.open(ctx, topic{kind: everything}, func(now stand) (s *Stream, err error) {
		r.epoch = now.epoch
		s = &Stream{Snapshot: struct{}{}, road: r}
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

func (r *allRoad) cursor() cursor { return cursor{r.epoch, everything, r.at.String()} }

func (r *allRoad) behind(ctx context.Context) ([]Item, bool, error) {
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

func (r *allRoad) take(b *batch) (list []Item) {
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

func (r *allRoad) end() any { return nil }
