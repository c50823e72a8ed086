package handlers

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

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
