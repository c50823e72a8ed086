package cli

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/trapeze-run/trapeze/internal/dburl"
	"github.com/trapeze-run/trapeze/internal/doctor"
	"github.com/trapeze-run/trapeze/internal/schema"
	"github.com/trapeze-run/trapeze/internal/store"
	"github.com/trapeze-run/trapeze/internal/store/view"
	"github.com/trapeze-run/trapeze/internal/text"
	"github.com/trapeze-run/trapeze/runner"
)

// connection holds the connection to DATABASE_URL, and the findings of the checks that do not need the API.
type connection struct {
	config   Settings
	pool     *pgxpool.Pool
	store    *store.Store
	findings []doctor.Finding
}

// examineConnection runs the checks that do not need the API. It accepts a standby and any schema version, because the checks report those
// problems. tables reports whether an API can use the schema.
func examineConnection(ctx context.Context, config Settings) (findings []doctor.Finding, tables bool, err error) {
	if config.DatabaseURL == "" {
		return nil, false, ErrNoDatabase
	}
	pool, err := config.Connect(ctx, false)
	if err != nil {
		return nil, false, err
	}
	defer pool.Close()
	s, err := store.New(ctx, pool, store.Options{Schema: config.Options.Schema, BehindPooler: config.Options.DirectURL != "", AnyServer: true,
		PodConnections: runner.PodConnections})
	if err != nil {
		return nil, false, err
	}
	defer s.Close()
	d := &connection{config: config, pool: pool, store: s}
	d.locks(ctx)
	d.server(ctx)
	d.notify(ctx)
	err = schema.Check(ctx, pool, config.Options.Schema)
	d.schema(err)
	return d.findings, err == nil, nil
}

func (d *connection) find(check string, status doctor.Health, says, do string) {
	d.findings = append(d.findings, doctor.Finding{Check: check, Status: status, Says: says, Do: do})
}

// schema adds a finding on whether the schema matches this program.
func (d *connection) schema(err error) {
	if errors.Is(err, schema.ErrRowSecurity) {
		d.find("schema", doctor.Failing, text.OneLine(err), "as the owner, for each table: alter table TABLE disable row level security; or create policy all_rows on TABLE using (true)")
		return
	}
	if errors.Is(err, schema.ErrNoData) {
		d.find("schema", doctor.Failing, text.OneLine(err), "drop schema "+d.config.Options.Schema+" cascade; then restore it with its data, or run trapeze migrate up")
		return
	}
	if err != nil {
		d.find("schema", doctor.Failing, text.OneLine(err), "run trapeze migrate up with the newest program, then trapeze doctor again for the other checks")
		return
	}
	d.find("schema", doctor.Healthy, fmt.Sprintf("%s is at version %d, which this program needs", d.config.Options.Schema, schema.Latest()), "")
}

// locks adds findings on sessions that block Trapeze's sessions. If the check fails, the check server reports the cause.
func (d *connection) locks(ctx context.Context) {
	if found, err := doctor.Locks(ctx, d.store); err == nil {
		d.findings = append(d.findings, found...)
	}
}

// server adds a finding on whether the server accepts writes.
func (d *connection) server(ctx context.Context) {
	s, err := view.ReadServer(ctx, d.store)
	switch {
	case err != nil:
		d.find("server", doctor.Failing, "check failed: "+text.OneLine(err), "check that the database responds and that this role has read access")
	case s.Standby:
		d.find("server", doctor.Failing, "PostgreSQL "+s.Version+" is a standby and accepts no writes",
			"point DATABASE_URL at the primary, or list all hosts with target_session_attrs=read-write")
	default:
		d.find("server", doctor.Healthy, "PostgreSQL "+s.Version+", primary", "")
	}
}

// notify checks that a notification arrives over the type of connection that pods use.
func (d *connection) notify(ctx context.Context) {
	if d.config.Options.DirectURL == "off" {
		d.find("notify", doctor.Healthy, "disabled by TRAPEZE_DATABASE_DIRECT_URL: pods only poll, every "+d.config.Options.PollEvery.String(), "")
		return
	}
	took, err := d.echo(ctx)
	if err != nil {
		do := "check that TRAPEZE_DATABASE_DIRECT_URL reaches PostgreSQL directly, without a pooler"
		if d.config.Options.DirectURL == "" {
			do = "behind a transaction pooler, set TRAPEZE_DATABASE_DIRECT_URL to PostgreSQL's own address, or to off"
		}
		d.find("notify", doctor.Failing, "a notification did not arrive, jobs wait for the next poll: "+text.OneLine(err), do)
		return
	}
	d.find("notify", doctor.Healthy, "a notification arrived after "+text.Round(took).String(), "")
}

// echo measures how long this process takes to receive its own notification.
func (d *connection) echo(ctx context.Context) (time.Duration, error) {
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
			return 0, errors.New("none within 3s")
		case err != nil:
			return 0, err
		case got.Payload == sent:
			return time.Since(began), nil
		}
	}
}
