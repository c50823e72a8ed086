-- The sequence of the ids of jobs that the database makes never goes back beside transactions that take an id. Locks: none; one function is replaced.

-- +goose Up
-- An id for a job that the database makes. The advisory lock is held shared while an id is taken, and alone while the sequence is moved, so that no
-- id is taken between the reading of the sequence and its new value. It ends before the caller's transaction does.
-- +goose StatementBegin
create or replace function trapeze.single_job_id() returns bigint
    language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
    free bigint;
begin
    loop
        -- One expression, so that no cancel leaves the session with the lock.
        select t.no * 1000 into free
        from (select pg_advisory_lock_shared(420028), nextval('trapeze.single_job_ids') as no, pg_advisory_unlock_shared(420028)) t;
        exit when not exists (select from trapeze.jobs j where j.id = free);
        -- A restore has left the sequence behind. One transaction at a time moves it, and never back.
        perform pg_advisory_lock(420028);
        begin
            perform setval('trapeze.single_job_ids', greatest((select max(j.id) from trapeze.jobs j) / 1000 + 1, s.last_value)) from trapeze.single_job_ids s;
        exception when query_canceled or others then
            perform pg_advisory_unlock(420028);
            raise;
        end;
        perform pg_advisory_unlock(420028);
    end loop;
    return free;
end $$;
-- +goose StatementEnd

-- +goose Down
-- +goose StatementBegin
create or replace function trapeze.single_job_id() returns bigint
    language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
    free bigint;
begin
    loop
        free := nextval('trapeze.single_job_ids') * 1000;
        exit when not exists (select from trapeze.jobs j where j.id = free);
        perform pg_advisory_xact_lock(420028);
        perform setval('trapeze.single_job_ids', greatest((select max(j.id) from trapeze.jobs j) / 1000 + 1, s.last_value)) from trapeze.single_job_ids s;
    end loop;
    return free;
end $$;
-- +goose StatementEnd
