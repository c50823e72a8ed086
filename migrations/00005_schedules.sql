-- The calendar: the schedules of operators and of the program, the next occurrence of each, and the outcome of every occurrence.

-- +goose Up

-- anchor and next_at are moments that every program can read and write: others, such as 'infinity', would make the heartbeats of the pods
-- fail, because their answer contains these moments. To stop a schedule from firing, pause it.
create table trapeze.schedules (
    name       text primary key check (name ~ '^[A-Za-z0-9][A-Za-z0-9_.:-]{0,99}$'),
    expression text not null check (octet_length(expression) between 1 and 200),
    zone       text not null default 'UTC',
    kind       text not null check (octet_length(kind) between 1 and 100),
    args       json not null default '{}',
    lane       text not null default '',             -- empty: the kind's
    subject    text not null default '',
    key        text not null default '' check (octet_length(key) <= 200),
    priority   smallint not null default 10 check (priority between -100 and 100),
    unique_key text not null default '',
    missed     text not null default 'coalesce' check (missed in ('coalesce', 'catch_up', 'skip')),
    catch_up   integer not null default 10 check (catch_up between 1 and 1000),
    overlap    text not null default 'queue' check (overlap in ('queue', 'skip')),
    paused     boolean not null default false,
    declared   json,                                 -- as the program last declared it; null: by operators only
    removed    boolean not null default false,       -- an operator took away what the program declares
    anchor     timestamptz not null default clock_timestamp() check (anchor >= '0001-01-02' and anchor < '9999-01-01'),
    -- The first occurrence that is not decided; null: to be planned, or none.
    next_at    timestamptz check (next_at >= '0001-01-02' and next_at < '9999-01-01'),
    planned    boolean not null default false,       -- next_at is of this expression
    error      text not null default '',
    created_at timestamptz not null default clock_timestamp(),
    updated_at timestamptz not null default clock_timestamp()
);
comment on table trapeze.schedules is 'One row per schedule: what it submits, and when it fires next.';
create index schedules_due on trapeze.schedules ((case when planned then next_at else '-infinity' end), name) where not paused and not removed;
comment on index trapeze.schedules_due is 'Which schedules are to be decided first? Those that are not planned come before all others.';

-- A schedule that fires at other times than before, or again, is planned again from then on.
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

-- The primary key decides who fires, never a clock or a lock.
create table trapeze.schedule_occurrences (
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
comment on table trapeze.schedule_occurrences is 'One row per occurrence of a schedule that was decided, with its outcome.';
create index schedule_occurrences_with_jobs on trapeze.schedule_occurrences (schedule, fire_at) where job_id is not null;
comment on index trapeze.schedule_occurrences_with_jobs is 'Which jobs did this schedule submit last?';

-- +goose Down
drop table trapeze.schedule_occurrences, trapeze.schedules;
drop function trapeze.schedule_is_planned_anew();
