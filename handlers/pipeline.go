package handlers

import (
	"context"
	"fmt"
	"regexp"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/trapeze-run/trapeze/runner"
)

// Options configures the pipeline. The zero value is usable. Pass the same options to [Setup], [Register] and [ReadTotals].
type Options struct {
	// Schema is the schema of the example's tables, which is separate from Trapeze's. The default is co2.
	Schema string
	// Dir is the directory from which files are read; a path that leads outside it is rejected. If Dir is empty, any path is allowed, and
	// relative paths start at the working directory.
	Dir string
	// BatchRows is the number of rows in an ingest transaction. The default is 1000.
	BatchRows int
	// BatchPause is a pause after every batch, which makes the ingest slow enough to watch. The default is 0.
	BatchPause time.Duration
	// Fenced makes the handlers write in separate transactions that are guarded by the job's fence, instead of in the job's own commits.
	// Set it for lanes with an engine other than PostgreSQL. The default is false.
	Fenced bool
	// OnRun is called after each run of a handler in this process with the run's start and end, regardless of the outcome. It must be safe
	// for concurrent use. It can be nil.
	OnRun func(kind string, began, ended time.Time)
}

// pipeline holds the data shared by the four handlers.
type pipeline struct {
	Options
	pool *pgxpool.Pool
}

var validSchema = regexp.MustCompile(`^[a-z_][a-z0-9_]{0,47}$`)

func newPipeline(pool *pgxpool.Pool, o Options) (*pipeline, error) {
	if o.Schema == "" {
		o.Schema = "co2"
	}
	if o.BatchRows <= 0 {
		o.BatchRows = 1000
	}
	if !validSchema.MatchString(o.Schema) {
		return nil, fmt.Errorf("schema %q of the example: want %s", o.Schema, validSchema)
	}
	return &pipeline{Options: o, pool: pool}, nil
}

var schemaName = regexp.MustCompile(`\bco2\b`)

// in returns a statement with the schema co2 replaced by the configured one.
func (p *pipeline) in(sql string) string { return schemaName.ReplaceAllString(sql, p.Schema) }

// retry is the policy for temporary errors, such as those caused by a restarting or unresponsive database. Errors that would recur with the
// same input are marked permanent where they occur.
var retry = runner.Retry(8, runner.Backoff{Base: 500 * time.Millisecond, Cap: 15 * time.Second})

// Register registers the four kinds. Call it before r.Run, with the pool that was passed to [Setup]. Unless Options.Fenced is set, the
// handlers write in the commit that ends the job, so Register panics if r was created by [runner.NewRemote].
func Register(r *runner.Runner, pool *pgxpool.Pool, o Options) error {
	p, err := newPipeline(pool, o)
	if err != nil {
		return err
	}
	options := []runner.HandleOption{retry}
	if !o.Fenced {
		options = append(options, runner.RequiresDatabase())
	}
	runner.Handle(r, timed(p, p.ingest), options...)
	runner.Handle(r, timed(p, p.syncFactors), options...)
	runner.Handle(r, timed(p, p.recalculate), options...)
	runner.Handle(r, timed(p, p.total), options...)
	return nil
}

// timed wraps a handler so that OnRun is called after each run.
func timed[A runner.Args](p *pipeline, handle runner.Func[A]) runner.Func[A] {
	if p.OnRun == nil {
		return handle
	}
	return func(ctx context.Context, j *runner.Job[A]) (*runner.Outcome, error) {
		began := time.Now()
		defer func() { p.OnRun(j.Kind(), began, time.Now()) }()
		return handle(ctx, j)
	}
}

// pause waits for Options.BatchPause or until ctx is cancelled.
func (p *pipeline) pause(ctx context.Context) error {
	if p.BatchPause <= 0 {
		return nil
	}
	select {
	case <-time.After(p.BatchPause):
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// setupSQL creates the tables. A transaction-level advisory lock prevents two pods from creating them concurrently.
const setupSQL = `
select pg_advisory_xact_lock(420022);

create schema if not exists co2;

-- Departure airports. Written by csv_ingest.
create table if not exists co2.units (
    code      text primary key,
    name      text,                    -- these columns are null until the list of airports has been read, and if the list lacks the code
    city      text,
    state     text,
    latitude  numeric,
    longitude numeric
);

-- One row per flight: a line of a file, counted for a year. Written by csv_ingest.
create table if not exists co2.activities (
    year           integer not null,
    source         text not null,
    line           bigint not null,
    flown_at       timestamptz not null,
    origin         text not null references co2.units (code),
    destination    text not null,
    distance_miles numeric not null,
    primary key (year, source, line)
);
-- activities_of_unit finds the flights of a year that departed from an airport.
create index if not exists activities_of_unit on co2.activities (year, origin);

-- kg CO2e per passenger-kilometre for distances from min_km up to but excluding max_km. A null max_km means no upper bound. Written by
-- factor_sync.
create table if not exists co2.factors (
    year      integer not null,
    band      text not null,
    min_km    numeric not null,
    max_km    numeric,
    kg_per_km numeric not null,
    primary key (year, band)
);

-- Written by emission_recalc. Each unit's rows are written by a separate job, so that no two jobs wait for each other.
create table if not exists co2.emissions (
    year   integer not null,
    unit   text not null,
    source text not null,
    line   bigint not null,
    band   text not null,
    km     numeric not null,
    kg     numeric not null,
    primary key (year, unit, source, line)
);

-- Written by unit_totals.
create table if not exists co2.totals (
    year    integer not null,
    unit    text not null,
    flights bigint not null,
    km      numeric not null,
    kg      numeric not null,
    primary key (year, unit)
);

-- The latest fence with which each job has written. Written by all kinds with Options.Fenced.
create table if not exists co2.fences (
    job   bigint primary key,
    fence bigint not null
);`

// Setup creates the example's tables if they do not exist. Any number of pods can call it at every start.
func Setup(ctx context.Context, pool *pgxpool.Pool, o Options) error {
	p, err := newPipeline(pool, o)
	if err != nil {
		return err
	}
	err = pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
		_, err := tx.Conn().PgConn().Exec(ctx, p.in(setupSQL)).ReadAll() // several statements in one round trip
		return err
	})
	if err != nil {
		return fmt.Errorf("set up schema %s: %w", p.Schema, err)
	}
	return nil
}
