package doctor

import (
	"context"
	"crypto/rand"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/trapeze-run/trapeze/internal/dburl"
	"github.com/trapeze-run/trapeze/internal/humanize"
	"github.com/trapeze-run/trapeze/internal/store/view"
	"github.com/trapeze-run/trapeze/runner"
)

func (d *doctor) server(ctx context.Context) error {
	s, err := view.ReadServer(ctx, d.store)
	if err != nil {
		return err
	}
	if s.Standby {
		d.find("server", failing, "PostgreSQL "+s.Version+" is a standby: nothing can be written",
			"point DATABASE_URL at the primary, or list all hosts with target_session_attrs=read-write")
	} else {
		d.find("server", healthy, "PostgreSQL "+s.Version+", a primary", "")
	}
	d.durability(s)
	if !s.Autovacuum {
		d.find("autovacuum", failing, "autovacuum is off: dead rows are never removed", "alter system set autovacuum = on; select pg_reload_conf()")
	}
	d.connections(s)
	return nil
}

// durability says whether what is committed survives a crash of the server.
func (d *doctor) durability(s view.Server) {
	var off []string
	for _, setting := range []struct {
		name string
		on   bool
	}{{"fsync", s.Fsync}, {"full_page_writes", s.FullPageWrites}} {
		if !setting.on {
			off = append(off, setting.name)
		}
	}
	if len(off) > 0 {
		d.find("durability", failing, strings.Join(off, " and ")+" off: a crash of the server may destroy all of its data",
			"turn them on with alter system, and reload")
	}
	if s.SynchronousCommit == "off" {
		d.find("durability", failing, "synchronous_commit is off: a crash of the server forgets what it accepted last",
			"set it to on for this role and database: alter role … set synchronous_commit = on")
	} else if len(off) == 0 {
		d.find("durability", healthy, "what is committed is on disk (fsync on, synchronous_commit "+s.SynchronousCommit+")", "")
	}
}

// connections holds what a pod of this configuration opens against what the server has left.
func (d *doctor) connections(s view.Server) {
	most, free := s.MaxConnections-s.Reserved, s.MaxConnections-s.Reserved-s.Connections
	host := int(d.pool.Config().MaxConns)
	demand := runner.PodConnections + host
	says := fmt.Sprintf("%d of %d in use; a pod of this configuration opens up to %d (%d of its own, %d in the host's pool): %d pods fit, %d more at this moment",
		s.Connections, most, demand, runner.PodConnections, host, most/demand, max(free, 0)/demand)
	switch {
	case free <= most/20:
		d.find("connections", failing, says, "raise max_connections, put a pooler in between, or end idle sessions: pods will be refused")
	case free < demand:
		d.find("connections", warning, says, "one more pod may be refused: raise max_connections, or lower pool_max_conns in DATABASE_URL")
	default:
		d.find("connections", healthy, says, "")
	}
	if d.config.Options.Slots > host {
		d.find("slots", warning, fmt.Sprintf("%d slots share a pool of %d connections: handlers that write in transactions wait for each other",
			d.config.Options.Slots, host), "add pool_max_conns to DATABASE_URL, or lower TRAPEZE_SLOTS, unless few handlers do")
	}
}

// producers checks that producers in SQL do not borrow a superuser's rights.
func (d *doctor) producers(ctx context.Context) error {
	owner, err := view.StrongOwner(ctx, d.store)
	if err == nil && owner != "" {
		d.find("producers", warning, "roles that submit from SQL call a function with the rights of the superuser "+owner,
			"give the schema to a role that is none: docs/grants.md")
	}
	return err
}

// clock compares the clocks: leases are the database's time, but logs, deadlines and tokens are the machines'.
func (d *doctor) clock(ctx context.Context) error {
	ahead, within, err := view.Clock(ctx, d.store)
	if err != nil {
		return err
	}
	apart := max(ahead.Abs()-within, 0)
	says := fmt.Sprintf("the database's clock is %s %s of this machine's, give or take %s", humanize.Round(ahead.Abs()), aheadOrBehind(ahead), humanize.Round(within))
	switch {
	case apart > 30*time.Second:
		d.find("clock", failing, says, "set the clocks by NTP on both machines")
	case apart > time.Second:
		d.find("clock", warning, says, "set the clocks by NTP on both machines")
	default:
		d.find("clock", healthy, says, "")
	}
	return nil
}

func aheadOrBehind(d time.Duration) string {
	if d < 0 {
		return "behind"
	}
	return "ahead"
}

// notify sends a notification the way that pods do, and waits for it the way that pods do.
func (d *doctor) notify(ctx context.Context) error {
	if d.config.Options.DirectURL == "off" {
		d.find("notify", healthy, "off by TRAPEZE_DATABASE_DIRECT_URL: pods poll only, every "+d.config.Options.PollEvery.String(), "")
		return nil
	}
	took, err := d.echo(ctx)
	if err != nil {
		do := "see whether TRAPEZE_DATABASE_DIRECT_URL reaches PostgreSQL itself"
		if d.config.Options.DirectURL == "" {
			do = "if a transaction pooler is in between, set TRAPEZE_DATABASE_DIRECT_URL to reach PostgreSQL itself, or to off"
		}
		d.find("notify", failing, "a notification did not arrive, so that jobs wait for the next poll: "+humanize.OneLine(err), do)
		return nil
	}
	d.find("notify", healthy, "a notification arrived after "+humanize.Round(took).String(), "")
	return nil
}

// echo returns how long a notification of our own took.
func (d *doctor) echo(ctx context.Context) (time.Duration, error) {
	ctx, cancel := context.WithTimeout(ctx, 3*time.Second)
	defer cancel()
	conn, err := dburl.Connect(ctx, d.config.MigrationURL())
	if err != nil {
		return 0, err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	channel, sent := d.config.Options.Schema+"_doctor", rand.Text()
	if _, err := conn.Exec(ctx, "listen "+pgx.Identifier{channel}.Sanitize()); err != nil {
		return 0, err
	}
	began := time.Now()
	if _, err := d.pool.Exec(ctx, `select pg_notify($1, $2)`, channel, sent); err != nil {
		return 0, err
	}
	for {
		got, err := conn.WaitForNotification(ctx)
		switch {
		case err != nil && ctx.Err() != nil:
			return 0, fmt.Errorf("nothing within 3s")
		case err != nil:
			return 0, err
		case got.Payload == sent:
			return time.Since(began), nil
		}
	}
}
