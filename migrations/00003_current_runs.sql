-- The mutex and the pointer of each (kind, subject): while its job runs, the row is the mutex; afterwards it points at
-- the latest run. Only jobs that have a subject touch it. Locks: new table only.

-- +goose Up
create table trapeze.current_runs (
    kind    text not null,
    subject text not null check (subject <> ''),
    job_id  bigint not null,
    fence   bigint not null,
    state   text not null check (state in ('running', 'ended'))
) with (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 1000,
        autovacuum_vacuum_cost_delay = 0);
-- current_runs_one_running promises: one running job per (kind, subject), whatever the pods do. No column of it is
-- nullable, so no null can open a hole.
create unique index current_runs_one_running on trapeze.current_runs (kind, subject) where state = 'running';
-- current_runs_of_subject answers: which run does this subject point at?
create index current_runs_of_subject on trapeze.current_runs (kind, subject);
-- With a publication, PostgreSQL refuses updates of a table without a replica identity. FULL costs nothing below wal_level = logical.
alter table trapeze.current_runs replica identity full;

-- +goose Down
drop table trapeze.current_runs;
