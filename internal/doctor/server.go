package doctor

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/trapeze-run/trapeze/internal/store/view"
	"github.com/trapeze-run/trapeze/internal/text"
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
