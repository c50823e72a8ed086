-- What the maintenance goes by, and what it has done. kind_retention: kinds that are kept for another time than their state.
-- thinned_days: which kinds have gone from a day that is kept for others. maintenance: when each chore was last done, and by
-- whom; whatever becomes of the pod that leads, another sees there that its turn has come. Locks: new tables only.

-- +goose Up
create table trapeze.kind_retention (
    kind   text not null check (octet_length(kind) between 1 and 100),
    state  text not null check (state in ('succeeded', 'failed', 'cancelled')),
    keep_s bigint not null check (keep_s between 0 and 3153600000), -- 0: for ever
    primary key (kind, state)
);

create table trapeze.thinned_days (
    state text not null,
    day   date not null,
    gone  text not null,                             -- the kinds, as a list with "only" or "all but" before it
    primary key (state, day)
);

create table trapeze.maintenance (
    chore    text primary key,
    begun_at timestamptz not null,
    done_at  timestamptz,                            -- null: it has never come to its end
    pod      text not null default '',               -- who did it, or is at it
    count    bigint not null default 0,              -- what it removed or mended, the last time
    seconds  double precision not null default 0,
    error    text not null default ''                -- of the last time; empty: none
) with (fillfactor = 50);

-- Drops one day of a table, which need not be the oldest; returns its name, or null when there is none. Locks: ACCESS EXCLUSIVE
-- on the parent for an instant.
-- +goose StatementBegin
create function trapeze.drop_day(parent text, day date) returns text
    language plpgsql security definer set search_path = pg_catalog, trapeze, pg_temp as $$
declare
    day_table text := parent || '_' || to_char(day, 'YYYYMMDD');
begin
    if parent not in ('done_succeeded', 'done_failed', 'done_cancelled', 'job_events') then
        raise exception 'trapeze.% has no days to drop', parent;
    end if;
    if to_regclass('trapeze.' || day_table) is null then
        return null; -- another pod was as far
    end if;
    execute format('drop table if exists trapeze.%I', day_table);
    return day_table;
end $$;
-- +goose StatementEnd
revoke execute on function trapeze.drop_day(text, date) from public;

-- +goose Down
drop function trapeze.drop_day(text, date);
drop table trapeze.maintenance;
drop table trapeze.thinned_days;
drop table trapeze.kind_retention;
