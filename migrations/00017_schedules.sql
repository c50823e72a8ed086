-- The calendar. schedules: what people and the program say, and when each fires next. schedule_fires: what became of every
-- fire; its primary key decides who fires, never a clock or a lock. Locks: new tables only.

-- +goose Up
create table trapeze.schedules (
    name       text primary key check (name ~ '^[A-Za-z0-9][A-Za-z0-9_.:-]{0,99}$'),
    expression text not null check (octet_length(expression) between 1 and 200),
    zone       text not null default 'UTC',
    kind       text not null check (octet_length(kind) between 1 and 100),
    args       json not null default '{}',
    lane       text not null default '',             -- empty: the kind's
    subject    text not null default '',
    priority   smallint not null default 0 check (priority between -100 and 100),
    unique_key text not null default '',
    missed     text not null default 'coalesce' check (missed in ('coalesce', 'catch_up', 'skip')),
    catch_up   integer not null default 10 check (catch_up between 1 and 1000),
    overlap    text not null default 'queue' check (overlap in ('queue', 'skip')),
    paused     boolean not null default false,
    declared   json,                                 -- as the program last declared it; null: by operators only
    removed    boolean not null default false,       -- an operator took away what the program declares
    anchor     timestamptz not null default clock_timestamp(),
    next_at    timestamptz,                          -- the first fire that is not decided; null: to be planned, or none
    planned    boolean not null default false,       -- next_at is of this expression
    error      text not null default '',
    created_at timestamptz not null default clock_timestamp(),
    updated_at timestamptz not null default clock_timestamp()
);

-- A schedule that fires at other times than before, or again, is planned anew from then on, whoever changed it.
-- +goose StatementBegin
create function trapeze.schedule_is_planned_anew() returns trigger language plpgsql set search_path = pg_catalog, pg_temp as $$
begin
    new.anchor := clock_timestamp();
    new.next_at := null;
    new.planned := false;
    new.error := '';
    return new;
end $$;
-- +goose StatementEnd
create trigger schedule_is_planned_anew before update on trapeze.schedules for each row
    when ((old.expression, old.zone, old.paused, old.removed) is distinct from (new.expression, new.zone, new.paused, new.removed)
        and not trapeze.applies_subscription())
    execute function trapeze.schedule_is_planned_anew();
alter table trapeze.schedules enable always trigger schedule_is_planned_anew;

create table trapeze.schedule_fires (
    schedule   text not null,
    fire_at    timestamptz not null,
    decided_at timestamptz not null default clock_timestamp(),
    outcome    text not null check (outcome in ('fired', 'duplicate', 'overlap', 'missed', 'failed')),
    manual     boolean not null default false,
    missed     integer not null default 0,
    job_id     bigint,
    message    text not null default '',
    primary key (schedule, fire_at)
);
-- schedule_fires_with_jobs answers: which jobs did this schedule submit last?
create index schedule_fires_with_jobs on trapeze.schedule_fires (schedule, fire_at) where job_id is not null;

-- +goose Down
drop table trapeze.schedule_fires;
drop table trapeze.schedules;
drop function trapeze.schedule_is_planned_anew();
