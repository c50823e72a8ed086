package admin

import (
	"context"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/trapeze-run/trapeze/internal/store"
	"github.com/trapeze-run/trapeze/internal/store/view"
	"github.com/trapeze-run/trapeze/internal/text"
	"github.com/trapeze-run/trapeze/job"
)

const (
	// holdLaneSQL keeps a lane from being deleted until the transaction ends. Plan: primary key lookup.
	holdLaneSQL  = `select n.engine from trapeze.lanes n where n.name = $1 for key share`
	limitColumns = `x.scope, x.name, x.key, x.slots, x.weight, x.rate, extract(epoch from x.per)::bigint, x.burst`
	// openLimitSQL reads a limit, and locks it until the transaction ends. It creates a missing one without values. Plan: one insert, or a primary key lookup.
	openLimitSQL = `
insert into trapeze.limits as x (scope, name, key) values ($1, $2, $3) on conflict (scope, name, key) do update set key = excluded.key
returning ` + limitColumns
	// ownLimitsSQL makes a lane keep its settings and limits when its template changes. Plan: primary key lookup.
	ownLimitsSQL = `update trapeze.lanes set template = null, idle_since = null where name = $1 and template is not null`
	// deleteLimitSQL deletes a limit. Plan: primary key lookup.
	deleteLimitSQL = `delete from trapeze.limits where scope = $1 and name = $2 and key = $3`
)

// setLimitSQL changes a limit. The caller has locked its row. Plan: primary key lookup.
var setLimitSQL = `
update trapeze.limits x set slots = $4, weight = $5, rate = $6::int, per = $7::bigint * interval '1 second', burst = $8,
	next_start = ` + startsAt("$7::bigint * interval '1 second'", "$6::int") + `
where x.scope = $1 and x.name = $2 and x.key = $3`

// startsAt returns the time of the next start of limit x at a new rate. The starts that the lane has used up in advance keep their number, and so take another
// time.
func startsAt(per, rate string) string {
	return `clock_timestamp() + extract(epoch from x.next_start - clock_timestamp()) / extract(epoch from x.per / x.rate) * (` + per + ` / ` + rate + `)`
}

// SetLimit creates, changes or removes a limit. The caller then calls [ApplyLimit]. If nothing changes, SetLimit writes no audit entry and no event. It returns
// [job.ErrInvalidSetting] if a value is invalid, and [job.ErrUnknownLane] if the limit is of a lane that does not exist, unless it is removed.
func SetLimit(ctx context.Context, s *store.Store, c job.KeyLimitChange, actor string) (done job.KeyLimitChanged, err error) {
	if err = c.Validate(); err == nil {
		done, err = inTx(ctx, s, func(tx pgx.Tx) (job.KeyLimitChanged, error) { return setLimitIn(ctx, s, tx, c, actor) })
	}
	if err != nil {
		return job.KeyLimitChanged{}, fmt.Errorf("%w (set a limit of %s %.100q)", err, c.Scope, c.Name)
	}
	return done, nil
}

func setLimitIn(ctx context.Context, s *store.Store, tx pgx.Tx, c job.KeyLimitChange, actor string) (done job.KeyLimitChanged, err error) {
	done.LimitOf = c.LimitOf
	if c.Scope == job.LaneScope && (c.Slots.Value != nil || c.Weight.Value != nil || c.Rate.Value != nil) {
		lane, err := store.QueryOne[struct{ Engine string }](ctx, s, tx, job.ErrUnknownLane, holdLaneSQL, c.Name)
		if err == nil && c.Rate.Value != nil && lane.Engine != "postgres" {
			err = fmt.Errorf("%w: the engine %s runs the jobs of the lane: limit their rate there", job.ErrInvalidSetting, lane.Engine)
		}
		if err != nil {
			return done, err
		}
	}
	if c.Scope == job.LaneScope {
		if _, err := tx.Exec(ctx, s.In(ownLimitsSQL), c.Name); err != nil {
			return done, err
		}
	}
	before, err := store.QueryOne[job.KeyLimit](ctx, s, tx, nil, openLimitSQL, c.Scope, c.Name, c.Key)
	if err != nil {
		return done, err
	}
	after := c.Apply(before)
	if after.Rate == nil && (c.Per != nil || c.Burst != nil) {
		return done, fmt.Errorf("%w: the lane has no rate: set the rate with its interval and burst", job.ErrInvalidSetting)
	}
	done.Changed = changedFields(before, after)
	if before.Some() {
		done.Before = &before
	}
	if after.Some() {
		done.After = &after
		_, err = tx.Exec(ctx, s.In(setLimitSQL), c.Scope, c.Name, c.Key, after.Slots, after.Weight, after.Rate, after.Per, after.Burst)
	} else {
		_, err = tx.Exec(ctx, s.In(deleteLimitSQL), c.Scope, c.Name, c.Key)
	}
	if err == nil && c.Scope == job.LaneScope {
		err = followTemplate(ctx, s, tx, c.Name)
	}
	if err != nil || len(done.Changed) == 0 {
		return done, err
	}
	return done, operates(ctx, s, tx, operation{
		AuditEntry: AuditEntry{Actor: actor, Action: "limit.set", Target: c.Scope + " " + c.Name, Before: done.Before, After: done.After},
		Event:      "limit.changed", About: c.Name,
	})
}

// limitsSQL lists limits in order, from the one after a given one. Null arguments match everything. Plan: limits_pkey, stops at the limit.
const limitsSQL = `
select ` + limitColumns + ` from trapeze.limits x
where coalesce(slots, weight, rate) is not null and ($1::text is null or scope = $1) and ($2::text is null or name = $2) and ($3::text is null or key = $3) and (scope, name, key) > ($4, $5, $6)
order by scope, name, key limit $7`

// Limits lists limits by scope, name and key: those after the given one, at most limit; see [view.PageSize].
func Limits(ctx context.Context, s *store.Store, f job.KeyLimitFilter, after job.LimitOf, limit int) ([]job.KeyLimit, error) {
	return view.Rows(ctx, s, "list limits", pgx.RowToStructByPos[job.KeyLimit], limitsSQL, store.Some(f.Scope), store.Some(f.Name), store.Some(f.Key),
		after.Scope, after.Name, after.Key, view.PageSize(limit))
}

// holdExcess parks the pending jobs of keys that have more jobs in live than their limit in a lane or of a kind, which is the given column of live. The
// least urgent jobs wait again until there are places for them. It examines the keys of the rows of a page.
func holdExcess(column, limit, page string) string {
	return `
with page as materialized (` + page + `), keys as materialized (
	select w.key, w.` + column + `, ` + limit + ` as most from (select distinct p.key, p.` + column + ` from page p where p.key is not null
		and p.` + column + ` in (select $3::text union all select n.name from trapeze.lanes n where '` + column + `' = 'lane' and n.template = $3)) w
), excess as materialized (
	select x.id from keys w cross join lateral (select count(*) as live, count(*) filter (where l.state = 'running') as running from trapeze.live l
		where l.key = w.key and l.` + column + ` = w.` + column + ` and l.lane_place is not null) n
	cross join lateral (select l.id from trapeze.live l where l.key = w.key and l.` + column + ` = w.` + column + ` and l.lane_place is not null and l.state = 'pending'
		order by (-l.priority), l.ready_at, l.id offset greatest(0, w.most - n.running)) x
	where n.live > w.most
), hit as materialized (
	select l.id from excess x join trapeze.live l on l.id = any(array[x.id]) where l.state = 'pending' and not ` + store.KeepsSubject("l") + ` order by x.id for update of l skip locked
), gone as (
	delete from trapeze.live l using hit h where l.id = any(array[h.id]) returning l.*
), held as (
	insert into trapeze.parked (why, run_after, ` + store.ParkedColumns + `)
	select 'key', coalesce(due_at, case when ready_at > 'epoch' then ready_at else claimed_at end), ` + store.ParkedColumns + `
	from gone
), ` + store.ReleaseGuards + `
select (select count(*) from page)::int, coalesce((select max(id) from page), 0), (select count(*) from gone)::int, 0, ` + store.LinesOf("gone")
}

// The pending jobs beyond a limit wait again. Plan: for one key, its rows in live_lane_places; for each key, Index Scan on live_pkey over the page, and the
// rows of its keys in live_lane_places.
var (
	holdLaneOfKeySQL = holdExcess("lane", store.LaneSlots, pageOfKey)
	holdLanePageSQL  = holdExcess("lane", store.LaneSlots, pageOfLive)
	holdKindOfKeySQL = holdExcess("kind", store.KindSlots, pageOfKey)
	holdKindPageSQL  = holdExcess("kind", store.KindSlots, pageOfLive)
)

const (
	pageOfKey  = `select l.id, l.key, l.lane, l.kind from trapeze.live l where l.key = $1 and l.lane_place is not null and $2::int > 0`
	pageOfLive = `select l.id, l.key, l.lane, l.kind from trapeze.live l where l.id > $1 order by l.id limit $2`
)

// waitingKeysSQL lists the next keys for which jobs wait, with their lanes and kinds. Plan: parked_for_key, one probe per key, lane and kind.
const waitingKeysSQL = `
with recursive groups as (
	(select p.key, p.lane, p.kind, 1 as no from trapeze.parked p
		where p.why = 'key' and (p.key, p.lane, p.kind) > ($1, $2, $3) order by p.key, p.lane, p.kind limit 1)
	union all
	select p.key, p.lane, p.kind, g.no + 1 from groups g cross join lateral (select p.key, p.lane, p.kind from trapeze.parked p
		where p.why = 'key' and (p.key, p.lane, p.kind) > (g.key, g.lane, g.kind) order by p.key, p.lane, p.kind limit 1) p
	where g.no < $4::int
)
select key, lane, kind from groups order by key, lane, kind`

// At most waitingKeysPages pages of keys, lanes and kinds are read, each with waitingKeysPage of them. Polls admit the jobs of later keys.
const (
	waitingKeysPage  = 1000
	waitingKeysPages = 100
)

// ApplyLimit makes the pending jobs beyond a limit wait again, and returns their number. Running jobs continue. It also returns the lines whose jobs the
// caller must admit, because the limit may be higher: see [store.Store.AdmitNext]. Calling it again, at any time, is safe.
func ApplyLimit(ctx context.Context, s *store.Store, of job.LimitOf) (held int, lines []store.Line, err error) {
	if held, lines, err = holdBeyond(ctx, s, of); err == nil && of.Key != job.EachKey {
		return held, append(lines, store.Line{Key: of.Key}), nil
	} else if err == nil {
		lines, err = addWaiting(ctx, s, of, lines)
	}
	return held, lines, text.Wrap(err, "apply a limit of %s %q", of.Scope, of.Name)
}

// holdBeyond parks the pending jobs beyond a limit, and returns their lines.
func holdBeyond(ctx context.Context, s *store.Store, of job.LimitOf) (held int, lines []store.Line, err error) {
	one := map[string]string{job.LaneScope: holdLaneOfKeySQL, job.KindScope: holdKindOfKeySQL}
	each := map[string]string{job.LaneScope: holdLanePageSQL, job.KindScope: holdKindPageSQL}
	for after := int64(0); ; {
		sql, first := each[of.Scope], any(after)
		if of.Key != job.EachKey {
			sql, first = one[of.Scope], of.Key
		}
		p, err := view.One(store.Rows(ctx, s, pgx.RowToStructByPos[movedPage], sql, first, movePage, of.Name))
		held, lines = held+p.Moved, append(lines, p.Lines...)
		if after = p.Last; err != nil || of.Key != job.EachKey || p.Seen < movePage {
			return held, lines, err
		}
	}
}

// addWaiting adds the keys that wait in the lane or of the kind of a limit.
func addWaiting(ctx context.Context, s *store.Store, of job.LimitOf, lines []store.Line) ([]store.Line, error) {
	type group struct{ Key, Lane, Kind string }
	after := group{}
	for range waitingKeysPages {
		page, err := store.Rows(ctx, s, pgx.RowToStructByPos[group], waitingKeysSQL, after.Key, after.Lane, after.Kind, waitingKeysPage)
		for _, g := range page {
			inLane := g.Lane == of.Name || job.IsLaneTemplate(of.Name) && strings.HasPrefix(g.Lane, strings.TrimSuffix(of.Name, "*"))
			if inLane && of.Scope == job.LaneScope || g.Kind == of.Name && of.Scope == job.KindScope {
				lines = append(lines, store.Line{Key: g.Key})
			}
		}
		if err != nil || len(page) < waitingKeysPage {
			return lines, err
		}
		after = page[len(page)-1]
	}
	return lines, nil
}
