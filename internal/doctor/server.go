package doctor

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/trapeze-run/trapeze/internal/store"
	"github.com/trapeze-run/trapeze/internal/store/view"
	"github.com/trapeze-run/trapeze/internal/text"
	"github.com/trapeze-run/trapeze/job"
)

// durability reports whether commits survive a server crash.
func (e *examination) durability() {
	var off []string
	for _, setting := range []struct {
		name string
		on   bool
	}{{"fsync", e.server.Fsync}, {"full_page_writes", e.server.FullPageWrites}} {
		if !setting.on {
			off = append(off, setting.name)
		}
	}
	if len(off) > 0 {
		e.find("durability", Failing, strings.Join(off, " and ")+" off: a crash of the server may destroy all its data",
			"turn them on with alter system, and reload")
	}
	if e.server.SynchronousCommit == "off" {
		e.find("durability", Failing, "synchronous_commit is off: a crash of the server loses the latest commits",
			"set it to on for this role and database: alter role … set synchronous_commit = on")
	} else if len(off) == 0 {
		e.find("durability", Healthy, "commits are written to disk (fsync on, synchronous_commit "+e.server.SynchronousCommit+")", "")
	}
}

func (e *examination) autovacuum() {
	if !e.server.Autovacuum {
		e.find("autovacuum", Failing, "autovacuum is off: dead rows are never removed", "alter system set autovacuum = on; select pg_reload_conf()")
	}
}

// notifications checks whether the server's NOTIFY queue is filling up. It holds 8 GB; when it is full, commits that notify fail, which
// include submissions. A session that listens and stays in a transaction keeps the queue from shrinking.
func (e *examination) notifications() {
	used := e.server.NotifyQueue
	if used < 0.25 {
		return
	}
	status := Warning
	if used >= 0.75 {
		status = Failing
	}
	e.find("notifications", status, fmt.Sprintf("the server's NOTIFY queue is %.0f%% full: when it is full, submissions fail", 100*used),
		"end the transaction of the session that listens: select pid, usename, application_name, xact_start, query from pg_stat_activity "+
			"where xact_start is not null order by xact_start limit 5; then select pg_terminate_backend(pid)")
}

// connections checks whether the server has enough free connections for a pod with this configuration.
func (e *examination) connections() {
	s, host := e.server, e.pod.HostConnections
	most, free := s.MaxConnections-s.Reserved, s.MaxConnections-s.Reserved-s.Connections
	demand := e.pod.Connections + host
	says := fmt.Sprintf("%d of %d in use; a pod with this configuration opens up to %d (%d for itself, %d in the host's pool): %d pods fit, %d more now",
		s.Connections, most, demand, e.pod.Connections, host, most/demand, max(free, 0)/demand)
	switch {
	case free <= most/20:
		e.find("connections", Failing, says, "raise max_connections, use a pooler, or end idle sessions: new pods will be refused")
	case free < demand:
		e.find("connections", Warning, says, "one more pod may be refused: raise max_connections, or lower pool_max_conns in DATABASE_URL")
	default:
		e.find("connections", Healthy, says, "")
	}
	if e.pod.Slots > host {
		status := Healthy // by default, there are up to four slots for each connection
		if e.pod.Slots > 4*host {
			status = Warning
		}
		e.find("slots", status, fmt.Sprintf("%d slots share a pool of %d connections: handlers that write in transactions wait for each other",
			e.pod.Slots, host), "add pool_max_conns to DATABASE_URL, or lower TRAPEZE_SLOTS, unless few handlers write in transactions")
	}
}

// collation detects an upgrade of the operating system or of ICU that changed the order of texts, after which indexes on text are corrupt.
func (e *examination) collation(ctx context.Context) error {
	if e.server.Major < 15 {
		return nil // earlier versions record no version for the database
	}
	c, err := view.ReadCollation(ctx, e.store)
	if err == nil && c.Built != c.Installed && c.Built != "" && c.Installed != "" {
		e.find("collation", Warning, fmt.Sprintf("the collation of the database changed from version %s to %s: indexes on text may miss rows, and unique keys may exist twice",
			c.Built, c.Installed), fmt.Sprintf("stop the pods, then reindex database %[1]s; alter database %[1]s refresh collation version", pgx.Identifier{c.Database}.Sanitize()))
	}
	return err
}

// clock compares the database's clock with this machine's clock, and with times that the database has written. Leases, delays and schedules
// depend on the database's clock, whereas logs and tokens depend on the clocks of the pods' machines.
func (e *examination) clock(ctx context.Context) error {
	ahead, within, err := view.Clock(ctx, e.store)
	if err != nil {
		return err
	}
	future, err := view.ReadFuture(ctx, e.store)
	if err != nil {
		return err
	}
	apart := max(ahead.Abs()-within, 0)
	says := fmt.Sprintf("the database's clock is %s %s of the clock of %s, to within %s", text.Round(ahead.Abs()), aheadOrBehind(ahead), e.pod.Name, text.Round(within))
	switch {
	case apart > 30*time.Second:
		e.find("clock", Failing, says, "set the clocks by NTP on both machines")
	case apart > time.Second:
		e.find("clock", Warning, says, "set the clocks by NTP on both machines")
	case len(future) == 0:
		e.find("clock", Healthy, fmt.Sprintf("the clocks of the database and of %s agree", e.pod.Name), "")
	}
	if len(future) > 0 {
		f := future[0]
		e.find("clock", Warning, fmt.Sprintf("the database's clock was set back: the time of %s is %s ahead of it, so jobs and schedules that were due by then wait until %s",
			f.What, text.Round(f.Ahead), f.At.UTC().Format(time.DateTime+"Z")), "correct the clock if it is wrong; otherwise wait, or make waiting jobs due: docs/operating.md, Clocks")
	}
	return nil
}

func aheadOrBehind(d time.Duration) string {
	if d < 0 {
		return "behind"
	}
	return "ahead"
}

// producers reports whether SQL producers are granted superuser privileges.
func (e *examination) producers(ctx context.Context) error {
	owner, err := view.StrongOwner(ctx, e.store)
	if err == nil && owner != "" {
		e.find("producers", Warning, "roles that submit from SQL call a function that runs with the privileges of the superuser "+owner,
			"make a role without superuser privileges the owner of the schema: docs/grants.md")
	}
	return err
}

// replication finds published tables whose updates PostgreSQL refuses, and triggers that a session_replication_role disables.
func (e *examination) replication(ctx context.Context) error {
	tables, err := view.Unidentified(ctx, e.store)
	if err != nil {
		return err
	}
	triggers, err := view.WeakTriggers(ctx, e.store)
	if err != nil {
		return err
	}
	for _, table := range tables {
		name := e.store.Schema() + "." + table
		e.find("replication", Failing, name+" is published without a replica identity: PostgreSQL refuses its updates and deletes",
			"alter table "+name+" replica identity full")
	}
	names := make([]string, len(triggers))
	remedies := make([]string, len(triggers))
	for i, t := range triggers {
		names[i] = fmt.Sprintf("%s on %s", t.Name, t.Table)
		remedies[i] = fmt.Sprintf("alter table %s.%s enable always trigger %s", e.store.Schema(), t.Table, t.Name)
	}
	if len(triggers) > 0 {
		e.find("triggers", Failing, "not always enabled: "+strings.Join(names, ", ")+": on-failure jobs may be lost, or the audit log changed",
			strings.Join(remedies, "; "))
	}
	return nil
}

// limits reports whether jobs can wait indefinitely, and proposes limits. Having no limit is a valid choice, because jobs that become due
// during an outage can then run after it.
func (e *examination) limits(ctx context.Context) error {
	lanes, err := view.Lanes(ctx, e.store)
	if err != nil {
		return err
	}
	var says, do []string
	lanes = slices.DeleteFunc(lanes, func(l job.LaneUse) bool {
		if l.MaxAge != nil {
			return *l.MaxAge > 0
		}
		return e.pod.MaxAge > 0
	})
	if len(lanes) > 0 {
		says = append(says, fmt.Sprintf("jobs of %s have no maximum age", text.Count(len(lanes), "lane", "lanes")))
		do = append(do, "if late work has no value, run trapeze lane set LANE max_age_s=24h, or set TRAPEZE_MAX_AGE=24h on all pods for all lanes")
	}
	if e.pod.ApprovalTTL == 0 {
		says = append(says, "jobs can await approval forever")
		do = append(do, "set TRAPEZE_APPROVAL_TTL=168h on all pods to cancel jobs that are not approved within a week")
	}
	if len(says) == 0 {
		says = append(says, "no job waits forever for a slot or for approval with this configuration")
	}
	e.find("limits", Healthy, strings.Join(says, "; "), strings.Join(do, "; "))
	return nil
}

// Locks finds sessions that block Trapeze's sessions with a lock. It reads no Trapeze table, so such a lock does not delay it.
func Locks(ctx context.Context, s *store.Store) ([]Finding, error) {
	holders, err := view.LockHolders(ctx, s)
	if err != nil {
		return nil, err
	}
	if len(holders) == 0 {
		return []Finding{{"locks", Healthy, "no session waits for a lock for more than a second", ""}}, nil
	}
	var found []Finding
	for _, h := range holders {
		says, do := LockText(h)
		found = append(found, Finding{"locks", Failing, says, do})
	}
	return found, nil
}

// LockText describes a session that blocks others, and the remedy.
func LockText(h view.LockHolder) (says, do string) {
	blocked := text.Count(h.Waiting, "session", "sessions") + " of Trapeze, the first for " + text.Seconds(h.Longest)
	if h.PID == 0 {
		if h.Prepared == "" {
			return "a prepared transaction blocks " + blocked, "select * from pg_prepared_xacts, then commit prepared or rollback prepared"
		}
		return fmt.Sprintf("the prepared transaction %q (role %s, %s) blocks %s", h.Prepared, h.User, text.Seconds(h.Age), blocked),
			fmt.Sprintf("commit prepared %s, or rollback prepared %[1]s, in this database", literal(h.Prepared))
	}
	statement := strings.Join(strings.Fields(h.Statement), " ")
	about := []string{h.Application, "role " + h.User, text.Seconds(h.Age)}
	if h.Application == "" {
		about = about[1:]
	}
	if strings.HasPrefix(h.State, "idle") {
		statement = h.State + ", last statement " + statement
	}
	do = fmt.Sprintf("select pg_terminate_backend(%d), or wait until it ends", h.PID)
	if h.State == "" {
		statement = "its statement is hidden from this role"
		do += "; to see its statement, grant pg_read_all_stats to this role"
	}
	return fmt.Sprintf("pid %d (%s: %s) blocks %s", h.PID, strings.Join(about, ", "), text.Short(statement, 120), blocked), do
}
