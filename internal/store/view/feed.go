package view

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/trapeze-run/trapeze/internal/store"
)

// feedNowSQL reads the current position of the feed: the database history, the transactions that a cursor may contain, and the events that
// are currently visible. Plan: job_events_in_commit_order at its ends, in each retained day.
const feedNowSQL = `
select coalesce(left((select trapeze.history())::text, 8), ''), pg_snapshot_xmax(pg_current_snapshot()), pg_current_snapshot()::text,
	coalesce((select e.xid from trapeze.job_events e order by e.xid limit 1), '0'::xid8),
	coalesce((select e.xid from trapeze.job_events e order by e.xid desc limit 1), '0'::xid8),
	coalesce(l.xid, '0'::xid8), coalesce(l.job, 0), coalesce(l.event_no, 0)
from (values (1)) as one(row) left join lateral (
	select e.xid, e.job, e.event_no from trapeze.job_event e
	where e.xid = (select v.xid from trapeze.job_events v where v.xid < pg_snapshot_xmin(pg_current_snapshot()) order by v.xid desc limit 1)
	order by coalesce(e.job, 0) desc, e.event_no desc limit 1
) l on true`

// FeedNow is the feed's position at one point in time.
type FeedNow struct {
	Epoch  string   // identifies the history; it changes when a dump is restored or a standby is promoted
	Next   uint64   // no transaction with this id or a higher one has ended yet
	Oldest uint64   // the first transaction with stored events, or 0 if there is none
	Seen   Seen     // the transactions that are currently visible
	Last   Position // position of the latest event that readers can already see
}

// ReadFeedNow returns the current position of the feed.
func ReadFeedNow(ctx context.Context, s *store.Store) (now FeedNow, err error) {
	var snapshot string
	var latest uint64
	found, err := store.Rows(ctx, s, func(row pgx.CollectableRow) (n FeedNow, err error) {
		return n, row.Scan(&n.Epoch, &n.Next, &snapshot, &n.Oldest, &latest, &n.Last.Xid, &n.Last.Job, &n.Last.EventNo)
	}, feedNowSQL)
	if err != nil {
		return now, fmt.Errorf("read the feed position: %w", err)
	}
	now = found[0]
	if now.Epoch == "" {
		history, err := s.SettleHistory(ctx)
		if err != nil {
			return now, fmt.Errorf("read the feed position: %w", err)
		}
		now.Epoch = history[:8]
	}
	now.Seen, err = Seen{}.at(snapshot, latest)
	return now, err
}

// feedPageSQL reads the history in the same order as feedSQL, for all jobs or for one submitter. Plan: job_events_in_commit_order;
// jobs_pkey.
const feedPageSQL = `
select ` + newsColumns + `, ''
from trapeze.job_event e left join trapeze.jobs j on j.id = e.job
where e.xid >= $1::text::xid8 and (e.xid, coalesce(e.job, 0), coalesce(e.event_no, 0)) > ($1::text::xid8, $2::bigint, $3::int)
	and e.xid < pg_snapshot_xmin(pg_current_snapshot()) and ($4::text is null or j.submitter = $4)
order by e.xid, coalesce(e.job, 0), e.event_no limit $5`

// FeedPage returns the history after a position, for all jobs or for one submitter, in the order of transaction ids. It stops at the
// horizon below which no new transaction can appear.
func FeedPage(ctx context.Context, s *store.Store, after Position, submitter string, limit int) ([]News, error) {
	list, err := store.Rows(ctx, s, scanNews, feedPageSQL, strconv.FormatUint(after.Xid, 10), after.Job, after.EventNo, store.Some(submitter), limit)
	if err != nil {
		return nil, fmt.Errorf("read the feed: %w", err)
	}
	return list, nil
}

// feedLagSQL returns the age of the oldest event above the horizon. Plan: job_events_in_commit_order in each retained day.
const feedLagSQL = `
select coalesce(extract(epoch from clock_timestamp() - (
	select e.at from trapeze.job_events e where e.xid >= pg_snapshot_xmin(pg_current_snapshot()) order by e.xid limit 1)), 0)::float8`

// FeedLag returns how long the global feed has been held up by an open transaction anywhere in the cluster, or 0 if it is not held up.
func FeedLag(ctx context.Context, s *store.Store) (time.Duration, error) {
	found, err := store.Rows(ctx, s, pgx.RowTo[float64], feedLagSQL)
	if err != nil {
		return 0, fmt.Errorf("read the lag of the feed: %w", err)
	}
	return time.Duration(max(0, found[0]) * float64(time.Second)), nil
}
