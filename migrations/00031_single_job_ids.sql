-- The sequence of the ids of jobs that the database makes never goes back beside transactions that take an id. Locks: none; one function is replaced.

-- +goose Up
-- An id for a job that the database makes. The advisory lock is held shared while an id is taken, and alone while the sequence is moved, so that no
-- id is taken between the reading of the sequence and its new value. Each block ends with an error that it catches: PostgreSQL then releases the lock
-- at once and not at the end of the caller's transaction, and keeps the new value of the sequence. After any other error, no lock is left either.
-- +goose StatementBegin
create or replace function trapeze.single_job_id() returns bigint
    language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
    free bigint;
begin
    loop
        begin
            perform pg_advisory_xact_lock_shared(420028);
            free := nextval('trapeze.single_job_ids') * 1000;
            raise sqlstate 'TZ000';
        exception when sqlstate 'TZ000' then
        end;
        exit when not exists (select from trapeze.jobs j where j.id = free);
        -- A restore has left the sequence behind. One transaction at a time moves it, and never back.
        begin
            perform pg_advisory_xact_lock(420028);
            perform setval('trapeze.single_job_ids', greatest((select max(j.id) from trapeze.jobs j) / 1000 + 1, s.last_value)) from trapeze.single_job_ids s;
            raise sqlstate 'TZ000';
        exception when sqlstate 'TZ000' then
        end;
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
