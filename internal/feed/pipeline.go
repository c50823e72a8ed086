package feed

import (
	"context"

	"github.com/trapeze-run/trapeze/internal/store/view"
	"github.com/trapeze-run/trapeze/job"
)

// pipelineSource follows a pipeline's events by the transactions that wrote them, because events of different jobs have no common order.
type pipelineSource struct {
	feed      *Feed
	epoch     string
	id        int64
	delivered delivered
	status    job.Status
}

// Pipeline opens a stream of the events of all jobs in a pipeline, as [Feed.Job] does for a single job.
func (f *Feed) Pipeline(ctx context.Context, id int64, after string) (*Stream, error) {
	if _, err := view.Pipeline(ctx, f.store, id); err != nil {
		return nil, err
	}
	r := &pipelineSource{feed: f, id: id}
	epoch := ""
	if after != Now && after != Beginning && after != "" {
		var err error
		if epoch, r.delivered, err = ofPipeline(after); err != nil {
			return nil, err
		}
	}
	return f.open(ctx, topic{aPipeline, id}, func(now position) (*Stream, error) {
		r.epoch = now.epoch
		if after == Now {
			r.delivered.seen = now.seen
		}
		p, err := view.Pipeline(ctx, f.store, id) // at least as recent as the tail's position, because it is read later
		if err != nil {
			return nil, err
		}
		r.status = p.Status
		s := &Stream{Snapshot: p, source: r}
		if epoch != "" {
			if s.Reset, err = f.check(ctx, epoch, r.delivered.earliest(), r.delivered.latest()); err != nil {
				return nil, err
			}
		}
		if s.Reset != "" {
			r.delivered = delivered{}
		}
		s.Cursor = r.cursor().String()
		return s, nil
	})
}

// check returns why a stream cannot continue from a cursor, or an empty string if it can. The undelivered events belong to transactions
// with IDs above after, and knows is the latest transaction in the cursor.
func (f *Feed) check(ctx context.Context, epoch string, after, knows uint64) (string, error) {
	now, err := view.ReadFeedNow(ctx, f.store)
	switch {
	case err != nil:
		return "", err
	case epoch != "" && epoch != now.Epoch:
		return otherHistory, nil
	case knows >= now.Next:
		return unknown, nil
	case after > 0 && (after < now.Oldest || now.Oldest == 0): // if no events are stored, some may have been pruned
		return tooOld, nil
	}
	return "", nil
}

// latest returns the latest transaction that may have a delivered event.
func (s delivered) latest() uint64 {
	if s.within != nil {
		return max(s.seen.Upto, s.within.Upto)
	}
	return s.seen.Upto
}

// earliest returns the transaction after which there may be undelivered events, or 0 if any transaction may have some.
func (s delivered) earliest() uint64 { return s.seen.Upto }

func (r *pipelineSource) cursor() cursor { return cursor{r.epoch, aPipeline, r.delivered.String()} }

func (r *pipelineSource) readBacklog(ctx context.Context) ([]Item, bool, error) {
	page, now, err := view.PipelineNews(ctx, r.feed.store, r.id, r.delivered.seen, r.delivered.within, r.delivered.at, pageSize)
	if err != nil {
		return nil, false, err
	}
	events, err := encodeAll(page)
	if err != nil {
		return nil, false, err
	}
	more := len(page) == pageSize || r.delivered.within != nil // the rest of a transaction that was delivered in part is still to come
	return r.deliver(events, now, len(page) < pageSize), more, nil
}

func (r *pipelineSource) take(b *batch) []Item { return r.deliver(b.events, b.seen, true) }

// deliver returns the events that have not been delivered yet, and records them as delivered. The events belong to the transactions in now.
// If whole is set, there are no other events of these transactions.
func (r *pipelineSource) deliver(events []*event, now view.Seen, whole bool) (list []Item) {
	var fresh []*event
	for _, e := range events {
		if !r.delivered.seen.Has(e.Xid) {
			fresh = append(fresh, e)
		}
	}
	for i, e := range fresh {
		if e.Status != "" {
			r.status = e.Status
		}
		r.delivered.within, r.delivered.at = &now, view.Position{Job: *e.Job, EventNo: *e.EventNo}
		if whole && i == len(fresh)-1 {
			r.see(now)
		}
		list = append(list, e.item(r.cursor()))
	}
	if whole {
		r.see(now)
	}
	return list
}

func (r *pipelineSource) see(now view.Seen) {
	r.delivered = delivered{seen: r.delivered.seen.With(now)}
}

func (r *pipelineSource) end() any {
	if r.status.Over() {
		return ended{Status: r.status}
	}
	return nil
}
