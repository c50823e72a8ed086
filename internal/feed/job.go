package feed

import (
	"context"
	"fmt"

	"github.com/trapeze-run/trapeze/internal/store/view"
	"github.com/trapeze-run/trapeze/job"
)

// jobSource follows a job's numbered events.
type jobSource struct {
	feed  *Feed
	epoch string
	id    int64
	no    int // number of the last delivered event
	state job.State
}

// Job opens a stream of a job's events. The stream starts after the given cursor, at [Beginning] or at [Now]. An empty cursor means
// [Beginning]. Job returns [job.ErrNotFound] if the job does not exist, [job.ErrInvalid] if the cursor is invalid, [ErrClosing] if the pod
// is stopping, and [ErrStuck] if the database has not responded for too long.
func (f *Feed) Job(ctx context.Context, id int64, after string) (*Stream, error) {
	j, err := view.Job(ctx, f.store, id)
	if err != nil {
		return nil, err
	}
	r := &jobSource{feed: f, id: id, state: j.State}
	var epoch string
	switch after {
	case Beginning, "":
	case Now:
		r.no = j.EventNo
	default:
		if epoch, r.no, err = ofJob(after, id); err != nil {
			return nil, err
		}
	}
	return f.open(ctx, topic{aJob, id}, func(now position) (*Stream, error) {
		r.epoch = now.epoch
		s := &Stream{Snapshot: j, source: r}
		switch {
		case epoch != "" && epoch != now.epoch:
			s.Reset = otherHistory
		case r.no > j.EventNo:
			s.Reset = unknown
		case r.no > 0 && r.no < j.EventNo:
			next, err := view.JobEvents(ctx, f.store, id, r.no, 1)
			if err != nil {
				return nil, err
			}
			if len(next) == 0 || *next[0].EventNo != r.no+1 {
				s.Reset = tooOld
			}
		}
		if s.Reset != "" {
			r.no = 0
		}
		s.Cursor = r.cursor().String()
		return s, nil
	})
}

func (r *jobSource) cursor() cursor { return cursor{r.epoch, aJob, fmt.Sprint(r.no)} }

func (r *jobSource) readBacklog(ctx context.Context) ([]Item, bool, error) {
	page, err := view.JobEvents(ctx, r.feed.store, r.id, r.no, pageSize)
	if err != nil {
		return nil, false, err
	}
	news := make([]view.News, len(page))
	for i, e := range page {
		news[i] = view.News{Event: e}
	}
	events, err := encodeAll(news)
	if err != nil {
		return nil, false, err
	}
	return r.take(&batch{events: events}), len(page) == pageSize, nil
}

func (r *jobSource) take(b *batch) (list []Item) {
	for _, e := range b.events {
		if *e.EventNo <= r.no {
			continue // already delivered from the backlog
		}
		r.no, r.state = *e.EventNo, e.To
		list = append(list, e.item(r.cursor()))
	}
	return list
}

func (r *jobSource) end() any {
	if r.state.Terminal() {
		return ended{State: r.state}
	}
	return nil
}

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
