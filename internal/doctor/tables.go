package doctor

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/trapeze-run/trapeze/internal/store"
	"github.com/trapeze-run/trapeze/internal/store/upkeep"
	"github.com/trapeze-run/trapeze/internal/store/view"
	"github.com/trapeze-run/trapeze/internal/text"
)

// horizon finds transactions, prepared transactions and replication slots that keep dead rows from being removed and delay the event feed.
func (e *examination) horizon(ctx context.Context) error {
	holders, err := view.Horizon(ctx, e.store)
	if err != nil {
		return err
	}
	found := false
	for _, h := range holders {
		status := e.oldness(h, e.now)
		if status == Healthy {
			continue
		}
		found = true
		says, do := holderText(h, e.now)
		e.find("horizon", status, says, do)
	}
	switch {
	case found:
	case e.server.SeesAll:
		e.find("horizon", Healthy, "no transaction is older than "+e.Transaction.String(), "")
	default:
		e.find("horizon", Warning, "no old transaction of this role; those of other roles are not visible", "grant pg_read_all_stats to this role")
	}
	return nil
}

// oldness rates a transaction or slot by its age and by the number of transactions that have started since. For a replication slot, whose
// age is unknown, only that number counts.
func (e *examination) oldness(h view.Holder, now time.Time) Health {
	const many, far = 1_000_000, 100_000_000
	switch {
	case h.Transactions > far, h.Since != nil && now.Sub(*h.Since)/12 > e.Transaction:
		return Failing
	case h.Transactions > many, h.Since != nil && now.Sub(*h.Since) > e.Transaction:
		return Warning
	}
	return Healthy
}

func holderText(h view.Holder, now time.Time) (says, do string) {
	held := fmt.Sprintf("has kept dead rows for %d transactions", h.Transactions)
	if h.Since != nil {
		held = "has held back dead rows and the event feed for " + text.Ago(h.Since, now)
	}
	switch h.What {
	case "prepared":
		return fmt.Sprintf("the prepared transaction %q in %s %s", h.ID, h.Database, held),
			fmt.Sprintf("commit prepared %s, or rollback prepared %[1]s, in that database", literal(h.ID))
	case "slot":
		return fmt.Sprintf("the %s replication slot %s %s", h.State, h.ID, held),
			fmt.Sprintf("check its consumer; if the slot is no longer used: select pg_drop_replication_slot(%s)", literal(h.ID))
	}
	who := strings.TrimSpace(h.User + " " + h.Application)
	return fmt.Sprintf("process %s (%s in %s, %s) %s", h.ID, who, h.Database, h.State, held),
		fmt.Sprintf("select pg_terminate_backend(%s), unless it is a running backup", h.ID)
}

// tables compares the number of dead rows in each table with the number that triggers autovacuum.
func (e *examination) tables(ctx context.Context) error {
	tables, err := view.Tables(ctx, e.store)
	if err != nil {
		return err
	}
	var dead int64
	bad := false
	for _, t := range tables {
		dead += t.Dead
		name := e.store.Schema() + "." + t.Name
		if !t.Autovacuum {
			bad = true
			e.find("tables", Failing, fmt.Sprintf("autovacuum is disabled for %s, which has %d dead rows", name, t.Dead),
				"alter table "+name+" reset (autovacuum_enabled)")
		}
		if t.Dead > 10_000 && t.Dead > 2*t.Trigger {
			bad = true
			e.find("tables", Warning, fmt.Sprintf("%s has %d dead rows and %d live rows; the autovacuum threshold is %d (last run: %s)",
				name, t.Dead, t.Rows, t.Trigger, orNever(text.Clock(t.Vacuumed))), "end the transactions that the check horizon names, then vacuum "+name)
		}
		if t.Age > 1_000_000_000 {
			bad = true
			e.find("tables", Failing, fmt.Sprintf("%s was last frozen %d transactions ago: at two billion the server refuses writes", name, t.Age), "vacuum freeze "+name)
		}
	}
	if !bad {
		e.find("tables", Healthy, fmt.Sprintf("%d tables, %d dead rows, autovacuum keeps up", len(tables), dead), "")
	}
	return nil
}

func orNever(at string) string {
	if at == "" {
		return "never"
	}
	return at
}

// daysAhead is the number of days ahead for which partitions must exist. Maintenance creates them seven days ahead.
const daysAhead = 3

// partitions finds days that have no partition, and rows in the default partitions, which take the rows of such days.
func (e *examination) partitions(ctx context.Context) error {
	missing, err := view.MissingDays(ctx, e.store, daysAhead)
	if err != nil {
		return err
	}
	rows, err := view.ReadDefaultRows(ctx, e.store)
	if err != nil {
		return err
	}
	if err := e.locks(ctx); err != nil {
		return err
	}
	if len(missing)+len(rows) == 0 {
		e.find("partitions", Healthy, fmt.Sprintf("exist for today and at least %d more days", daysAhead), "")
	}
	if len(missing) > 0 {
		first := missing[0]
		e.find("partitions", Warning, fmt.Sprintf("%s missing, first that of %s of %s", text.Count(len(missing), "partition is", "partitions are"), first.Table,
			first.Day.Format(time.DateOnly)), fmt.Sprintf("start a pod, which creates them; or, as the owner: select %s.ensure_partitions(7)", e.store.Schema()))
	}
	for _, r := range rows {
		count := text.Count(r.Rows, "row", "rows")
		if r.Rows == view.MostDefaultRows {
			count = "at least " + count
		}
		e.find("partitions", Warning, fmt.Sprintf("%s_default holds %s from %s to %s, because no pod created these days' partitions in time, or the clock jumped",
			r.Table, count, r.From.Format(time.DateOnly), r.To.Format(time.DateOnly)), fmt.Sprintf(
			"maintenance moves them within minutes; if not, end the transactions that use %s.%s, and see the check maintenance", e.store.Schema(), r.Table))
	}
	return nil
}

// readsAtOnce is the number of concurrent reads of finished jobs for which the server's lock table must have room.
const readsAtOnce = 8

// locks compares the number of partitions, each of which a read of finished jobs locks, with the size of the server's lock table.
func (e *examination) locks(ctx context.Context) error {
	l, err := view.ReadLocks(ctx, e.store)
	if err != nil || l.Read*readsAtOnce <= l.Size {
		return err
	}
	status := Warning
	if l.Read >= l.Size {
		status = Failing
	}
	e.find("partitions", status, fmt.Sprintf("a read of finished jobs takes %d locks, and the server has room for about %d: concurrent reads may fail with \"out of shared memory\"",
		l.Read, l.Size), fmt.Sprintf("set max_locks_per_transaction to at least %d, which needs a restart; or shorten the retention", l.Read*readsAtOnce/e.server.MaxConnections+1))
	return nil
}

// literal quotes text as an SQL literal for statements that operators paste into psql.
func literal(text string) string {
	return "'" + strings.ReplaceAll(text, "'", "''") + "'"
}

// historyRecent is the age up to which a timeline change is reported as a warning.
const historyRecent = 24 * time.Hour

// history detects a failover or restore that may have lost commits, and a job ID sequence that has fallen behind the IDs in use.
func (e *examination) history(ctx context.Context) error {
	c, err := store.ReadClusterState(ctx, e.store)
	if errors.Is(err, store.ErrNoCluster) {
		e.find("history", Failing, "the table cluster has no row, so the heartbeats of all pods fail",
			fmt.Sprintf("psql -c 'insert into %s.cluster (history) values (gen_random_uuid())'", e.store.Schema()))
		return nil
	}
	if err != nil {
		return err
	}
	const missing = "the latest commits before it may be missing"
	switch {
	case !c.Settled && c.Agreed != 0:
		e.find("history", Warning, fmt.Sprintf("timeline changed (%d, was %d), or the database was restored, and no pod has noticed yet: %s",
			c.Timeline, c.Agreed, missing), "start a pod: it advances the job ids past those that may be lost")
	case c.Changed != nil && e.now.Sub(*c.Changed) < historyRecent:
		e.find("history", Warning, fmt.Sprintf("timeline changed, or the database was restored, at %s (now timeline %d, change number %d): %s",
			c.Changed.UTC().Format(time.RFC3339), c.Timeline, c.Epoch, missing),
			"check whether the failover was asynchronous, and submit missing jobs again: docs/operating.md, \"After a failover that lost commits\"")
	case c.Timeline == 0 || !c.Known:
		e.find("history", Healthy, "PostgreSQL does not report its timeline or system identifier to this role: lost commits are not detected", "")
	default:
		e.find("history", Healthy, fmt.Sprintf("timeline %d, as recorded by the pods", c.Timeline), "")
	}
	if c.Behind() {
		e.find("ids", Failing, fmt.Sprintf("sequence behind ids: the next block begins at %d, but a job has the id %d", c.Sequence+1000, c.Highest),
			fmt.Sprintf("psql -c 'select %s.advance_job_ids(%d)'", e.store.Schema(), c.Highest))
	} else {
		e.find("ids", Healthy, "the sequence of job ids is above the ids in use", "")
	}
	return nil
}

// lateAfter is the time since its last run after which a maintenance task counts as late. Each task is due at least once an hour, and
// another pod takes it over after three intervals.
const lateAfter = 4 * time.Hour

// maintenance finds tasks that failed or are late. If no pod is open, it reports nothing, because all tasks are late and the pods check
// already reports the cause.
func (e *examination) maintenance(ctx context.Context) error {
	runs, err := upkeep.TaskRuns(ctx, e.store)
	if err != nil {
		return err
	}
	pods, err := view.ReadPodHealth(ctx, e.store)
	if err != nil || len(pods) == 0 {
		return err
	}
	bad := false
	var late []string
	for _, t := range runs {
		if t.Error != "" {
			bad = true
			e.find("maintenance", Warning, fmt.Sprintf("the maintenance task %s failed on %s: %s", t.Task, t.Pod, text.OneLine(fmt.Errorf("%s", t.Error))),
				"fix the cause that the error names; the next run retries")
		}
		if t.Ago > lateAfter.Seconds() {
			late = append(late, fmt.Sprintf("%s (%s ago)", t.Task, text.Seconds(t.Ago)))
		}
	}
	if len(late) > 0 {
		bad = true
		e.find("maintenance", Warning, "late: "+strings.Join(late, ", "), "check the logs of the pods; select * from "+e.store.Schema()+".maintenance")
	}
	if !bad {
		e.find("maintenance", Healthy, fmt.Sprintf("%s on time", text.Count(len(runs), "maintenance task is", "maintenance tasks are")), "")
	}
	return nil
}
