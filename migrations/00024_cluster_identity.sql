-- Which database cluster holds these rows, so that pods notice a promoted standby or a restored backup: commits of the last moments may be
-- missing then, and with them ids, fences and events that pods or clients have seen. Locks: new objects only, nothing waits.

-- +goose Up

-- One row: the cluster that the pods have last agreed on. A null is a value that could not be read.
create table trapeze.cluster (
    one        boolean primary key default true check (one),
    system_id  bigint,                     -- of pg_control_system(): another one after initdb, so after a dump and restore
    timeline   integer,                    -- of the write-ahead log: another one after a promotion or a recovery to a point in time
    feed       uuid,                       -- of feed_epoch: another one after a dump was restored into the same cluster
    history    uuid not null,              -- new with each change of the above; its first 8 characters are in the cursors of streams
    epoch      bigint not null default 0,  -- counts the changes; every fence begins with it
    changed_at timestamptz                 -- null: never
);
insert into trapeze.cluster (history) select id from trapeze.feed_epoch;

-- The timeline that is written now: null on a standby, and where PostgreSQL refuses to answer. pg_control_checkpoint() names the timeline of
-- the last checkpoint, which is older for a while after a promotion.
-- +goose StatementBegin
create function trapeze.timeline() returns integer language plpgsql set search_path = pg_catalog, pg_temp as $$
begin
    if pg_catalog.pg_is_in_recovery() then
        return null;
    end if;
    return ('x' || pg_catalog.left(pg_catalog.pg_walfile_name(pg_catalog.pg_current_wal_lsn()), 8))::bit(32)::integer;
exception when others then
    return null;
end $$;
-- +goose StatementEnd

-- The present identity of the cluster. Each part is null where it cannot be read.
-- +goose StatementBegin
create function trapeze.cluster_identity(out system_id bigint, out timeline integer, out feed uuid) language plpgsql set search_path = pg_catalog, pg_temp as $$
begin
    timeline := trapeze.timeline();
    begin
        system_id := (select c.system_identifier from pg_catalog.pg_control_system() c);
    exception when others then
        null;
    end;
    begin
        feed := (select f.id from trapeze.feed_epoch f);
    exception when others then
        null;
    end;
end $$;
-- +goose StatementEnd

-- The history that the pods have agreed on: null where the cluster is another one than then, so that settle_history() is due.
-- +goose StatementBegin
create function trapeze.history() returns uuid language plpgsql set search_path = pg_catalog, pg_temp as $$
begin
    return (select c.history from trapeze.cluster c cross join trapeze.cluster_identity() i
            where (i.system_id is null or i.system_id is not distinct from c.system_id)
              and (i.timeline is null or i.timeline is not distinct from c.timeline)
              and (i.feed is null or i.feed is not distinct from c.feed));
end $$;
-- +goose StatementEnd

-- Writes down the cluster's identity. If it has changed, a new history and a new epoch begin, and job ids go on far above those that may
-- have been lost. A second caller finds that done. It has its owner's rights, so that a runtime role need not set the sequence.
-- +goose StatementBegin
create function trapeze.settle_history() returns uuid
    language plpgsql security definer set search_path = pg_catalog, trapeze, pg_temp as $$
declare
    c trapeze.cluster;
    i record;
begin
    select * into c from trapeze.cluster for update;
    select * into i from trapeze.cluster_identity();
    if i.system_id <> c.system_id or i.timeline <> c.timeline or i.feed <> c.feed then
        c.history := gen_random_uuid();
        -- As claims count before this: see claim.go.
        c.epoch := c.epoch + greatest(1, i.timeline - c.timeline);
        c.changed_at := now();
        perform setval('trapeze.job_ids', greatest((select max(id) from trapeze.jobs), (select last_value from trapeze.job_ids)) + 4294967296);
    end if;
    update trapeze.cluster set system_id = coalesce(i.system_id, c.system_id), timeline = coalesce(i.timeline, c.timeline),
        feed = coalesce(i.feed, c.feed), history = c.history, epoch = c.epoch, changed_at = c.changed_at;
    return c.history;
end $$;
-- +goose StatementEnd

-- Moves the sequence of job ids far above an id of a block that was reserved and is in use, unless that is done.
-- +goose StatementBegin
create function trapeze.advance_job_ids(in_use bigint) returns boolean
    language plpgsql security definer set search_path = pg_catalog, trapeze, pg_temp as $$
declare
    last bigint;
begin
    perform from trapeze.cluster for update;
    last := (select last_value from trapeze.job_ids);
    if last >= in_use + 4294967296 then
        return false;
    end if;
    perform setval('trapeze.job_ids', greatest((select max(id) from trapeze.jobs), last) + 4294967296);
    return true;
end $$;
-- +goose StatementEnd

-- +goose Down
drop function trapeze.advance_job_ids(bigint);
drop function trapeze.settle_history();
drop function trapeze.history();
drop function trapeze.cluster_identity();
drop function trapeze.timeline();
drop table trapeze.cluster;
