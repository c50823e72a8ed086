// Package upkeep holds the maintenance statements for retention, pruning, partitions, reconciliation, statistics, vacuuming and overdue
// jobs, and records which pod last ran each task. The statements work in batches, and any pod can run them. Each function takes the
// [store.Store] that it uses.
package upkeep

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/trapeze-run/trapeze/internal/store"
)

// missingDaysSQL lists the days without a partition, most urgent first. Plan: the system catalog, and all rows of the default partitions,
// which are usually empty. A partition for a later day than the day after tomorrow can wait.
const missingDaysSQL = `select parent, day, day > (now() at time zone 'UTC')::date + 2 from trapeze.missing_days($1::int)`

// createDaySQL creates one day's partition, and moves its rows from the default partition. Concurrent calls take turns.
const createDaySQL = `select trapeze.create_day($1, $2::date)`

// EnsurePartitions creates the missing partitions for today and the next daysAhead days, and for the days of rows in a default partition. It
// returns how many it created. Each is created in a separate transaction, which waits only briefly for its locks. If a table is locked,
// EnsurePartitions leaves its days to the next call, and returns an error only if one of them cannot wait.
func EnsurePartitions(ctx context.Context, s *store.Store, daysAhead int) (made int, err error) {
	type missing struct {
		Parent  string
		Day     time.Time
		CanWait bool
	}
	days, err := store.Rows(ctx, s, pgx.RowToStructByPos[missing], missingDaysSQL, daysAhead)
	if err != nil {
		return 0, fmt.Errorf("list missing partitions: %w", err)
	}
	var errs []error
	locked := map[string]bool{}
	for _, d := range days {
		if locked[d.Parent] {
			continue
		}
		created, err := store.Rows(ctx, s, pgx.RowTo[bool], createDaySQL, d.Parent, d.Day)
		switch {
		case err == nil && created[0]:
			made++
		case LockTimedOut(err):
			if locked[d.Parent] = true; d.CanWait {
				continue
			}
			fallthrough
		case err != nil:
			errs = append(errs, fmt.Errorf("create the partition of %s for %s: %w", d.Parent, d.Day.Format(time.DateOnly), err))
		}
	}
	return made, errors.Join(errs...)
}

// daysSQL lists the past days of a partitioned table, oldest first. It also returns the database's current time, which determines which
// days are past.
const daysSQL = `
select d.day, now()
from pg_inherits i join pg_class c on c.oid = i.inhrelid
cross join lateral (select to_date(substring(c.relname from '_([0-9]{8})$'), 'YYYYMMDD') as day) d -- null for the default partition
where i.inhparent = to_regclass($1) and d.day < (now() at time zone 'UTC')::date
order by 1`

// pastDay is a UTC day that has ended by the time Now.
type pastDay struct{ Day, Now time.Time }

// over reports whether the retention of jobs that ended on that day has expired. A negative keep means forever.
func (d pastDay) over(keep time.Duration) bool {
	return keep >= 0 && !d.Day.AddDate(0, 0, 1).Add(keep).After(d.Now)
}

func oldDays(ctx context.Context, s *store.Store, table string) ([]pastDay, error) {
	days, err := store.Rows(ctx, s, pgx.RowToStructByPos[pastDay], daysSQL, s.Schema()+"."+table)
	if err != nil {
		return nil, fmt.Errorf("list past partitions of %s: %w", table, err)
	}
	return days, nil
}

// dropDaySQL drops one day of a table. dropInTurnSQL keeps other transactions from creating or dropping days concurrently. Without it,
// PostgreSQL returns an internal error (XX000) when a transaction drops a partition that another one has just dropped. create_day uses
// the same lock key.
const (
	dropDaySQL    = `select trapeze.drop_day($1, $2)`
	dropInTurnSQL = `select pg_advisory_xact_lock(420022)`
)

// Forget deletes jobs that ended in the given state and whose retention has expired, and returns how many it deleted. The retention is
// keep, or the override of the job's kind, and is measured from the end of the UTC day; a negative keep means forever. Forget processes the
// oldest days first, and drops a day once none of its jobs remain. If some kinds are kept longer, or an unfinished job may still read
// results from that day, the day is kept and the expired rows are deleted individually. A failure to delete one job does not block the
// others, and the next run retries it. Forget can be interrupted at any time, and several pods can run it concurrently.
func Forget(ctx context.Context, s *store.Store, state string, keep time.Duration, pace Pace) (total int, err error) {
	rules, err := retentionsOf(ctx, s, state)
	if err != nil {
		return 0, err
	}
	days, err := oldDays(ctx, s, "done_"+state)
	if err != nil {
		return 0, err
	}
	var errs []error
	for _, d := range days {
		f := &dayPruning{s: s, state: state, day: d.Day, rule: rules.of(d, keep), pace: pace}
		err := f.run(ctx)
		total += f.gone
		if errs = append(errs, f.errs...); err != nil {
			errs = append(errs, fmt.Errorf("prune %s jobs of %s: %w", state, d.Day.Format(time.DateOnly), err))
			if !LockTimedOut(err) {
				break
			}
		}
	}
	return total, errors.Join(errs...)
}

// run deletes the jobs that the day's rule selects.
func (f *dayPruning) run(ctx context.Context) error {
	if f.rule.none() {
		return nil
	}
	thinned, err := store.Rows(ctx, f.s, pgx.RowTo[string], thinnedSQL, f.state, f.day)
	if err != nil || len(thinned) > 0 && thinned[0] == f.rule.String() {
		return err
	}
	awaited, err := store.Rows(ctx, f.s, pgx.RowTo[int64], awaitedSQL, f.state, f.day)
	if err != nil {
		return err
	}
	f.awaited = make(map[int64]bool, len(awaited))
	for _, id := range awaited {
		f.awaited[id] = true
	}
	f.thins = len(awaited) > 0 || !f.rule.all()
	for after, more := int64(0), true; more; more = after > 0 {
		if err := f.pace(ctx); err != nil {
			return err
		}
		if after, err = f.page(ctx, after); err != nil {
			return err
		}
	}
	if f.left > 0 {
		return nil // the next run retries
	}
	return f.close(ctx)
}

// close completes a day whose selected jobs have all been deleted. It drops the day if it is empty. Otherwise, it records the day as done,
// so that later runs do not read it again.
func (f *dayPruning) close(ctx context.Context) error {
	if f.thins && f.rule.rest {
		kept, err := store.Rows(ctx, f.s, pgx.RowTo[bool], dayHasRowsSQL, f.state, f.day)
		if err != nil {
			return err
		}
		f.thins = kept[0]
	}
	if !f.thins || f.rule.all() {
		return dropDay(ctx, f.s, "done_"+f.state, f.day)
	}
	_, err := store.Rows(ctx, f.s, pgx.RowTo[int], noteThinnedSQL, f.state, f.day, f.rule.String())
	return err
}

// ForgetEvents drops the days of job history whose retention period has expired, and returns how many it dropped.
func ForgetEvents(ctx context.Context, s *store.Store, keep time.Duration, pace Pace) (dropped int, err error) {
	days, err := oldDays(ctx, s, "job_events")
	if err != nil {
		return 0, err
	}
	for _, d := range days {
		if !d.over(keep) {
			continue
		}
		if err := pace(ctx); err != nil {
			return dropped, err
		}
		if err := dropDay(ctx, s, "job_events", d.Day); err != nil {
			return dropped, err
		}
		dropped++
	}
	return dropped, nil
}

// dropDay waits at most a second for each lock, because it must not block readers of the table for long. If it times out, the next run
// tries again.
func dropDay(ctx context.Context, s *store.Store, table string, day time.Time) error {
	err := s.Tx(ctx, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, `set local lock_timeout = '1s'`); err != nil {
			return err
		}
		if _, err := tx.Exec(ctx, dropInTurnSQL); err != nil {
			return err
		}
		_, err := tx.Exec(ctx, s.In(dropDaySQL), table, day)
		return err
	})
	if err != nil {
		return fmt.Errorf("drop a partition of %s: %w", table, err)
	}
	return nil
}

const (
	// retentionsSQL reads, for each kind with an override, the number of seconds for which jobs that ended in a state are kept; -1 means
	// forever. Plan: a small table.
	retentionsSQL = `select kind, case when keep_s = 0 then -1 else keep_s end from trapeze.kind_retention where state = $1 order by kind`
	// thinnedSQL reads the rule by which jobs were deleted from a day that is kept. noteThinnedSQL records that rule, and deletes the
	// records of dropped days. dayHasRowsSQL reports whether a day has any rows left. Plan: primary key; catalogs; the day's first row.
	thinnedSQL     = `select gone from trapeze.thinned_days where state = $1 and day = $2::date`
	noteThinnedSQL = `
with old as (
	delete from trapeze.thinned_days t where to_regclass('trapeze.' || 'done_' || t.state || '_' || to_char(t.day, 'YYYYMMDD')) is null
)
insert into trapeze.thinned_days (state, day, gone) values ($1, $2::date, $3)
on conflict (state, day) do update set gone = excluded.gone returning 1`
	dayHasRowsSQL = `
select coalesce((select true from trapeze.done d
	where d.state = $1 and d.finished_at >= $2::timestamptz and d.finished_at < $2::timestamptz + interval '24 hours' limit 1), false)`
)

// retentions holds the retention overrides of kinds. Negative values mean forever.
type retentions []kindRetention

type kindRetention struct {
	Kind    string
	Seconds int64
}

func retentionsOf(ctx context.Context, s *store.Store, state string) (retentions, error) {
	list, err := store.Rows(ctx, s, pgx.RowToStructByPos[kindRetention], retentionsSQL, state)
	if err != nil {
		return nil, fmt.Errorf("read the retention of kinds: %w", err)
	}
	return list, nil
}

// of returns the rule for a day. The keep argument is the retention of kinds without an override.
func (r retentions) of(d pastDay, keep time.Duration) rule {
	u := rule{rest: d.over(keep), kinds: []string{}}
	for _, k := range r {
		if d.over(time.Duration(k.Seconds)*time.Second) != u.rest {
			u.kinds = append(u.kinds, k.Kind)
		}
	}
	return u
}

// rule defines the kinds whose jobs are deleted from a day: either all kinds except the listed ones, or only the listed ones.
type rule struct {
	rest  bool // all except kinds
	kinds []string
}

func (u rule) none() bool { return !u.rest && len(u.kinds) == 0 }
func (u rule) all() bool  { return u.rest && len(u.kinds) == 0 }

func (u rule) String() string {
	kinds := strings.Join(slices.Sorted(slices.Values(u.kinds)), "\n")
	if u.rest {
		return "all but\n" + kinds
	}
	return "only\n" + kinds
}
