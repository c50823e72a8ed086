-- Days of the partitioned tables, created ahead and dropped behind. A row whose day has no partition is written to the default
-- partition, so that no statement fails for lack of a day. Each day is created in a separate transaction, which moves the day's rows
-- from the default partition. A day is created with LIKE and attached, because "create table ... partition of" would queue every finish
-- behind an open reader. The functions run with their owner's rights, so that a runtime role needs no DDL.

-- +goose Up

-- Gives a day the replica identity without which PostgreSQL refuses updates and deletes while a publication exists. Days do not inherit it.
-- Ended jobs have a unique id, so that a subscriber need not compare their json. Events have no unique columns.
-- +goose StatementBegin
create function trapeze.identify_partition(parent text, day_table text) returns void
    language plpgsql set search_path = pg_catalog, trapeze, pg_temp as $$
begin
    if parent = 'job_events' then
        execute format('alter table trapeze.%I replica identity full', day_table);
    else
        execute format('create unique index %I on trapeze.%I (id)', day_table || '_id_idx', day_table);
        execute format('alter table trapeze.%I replica identity using index %I', day_table, day_table || '_id_idx');
    end if;
end $$;
-- +goose StatementEnd

-- Lists the days that lack a partition: yesterday, today and the days ahead, and each day with rows in a default partition. The most
-- urgent days come first.
-- +goose StatementBegin
create function trapeze.missing_days(days_ahead integer) returns table (parent text, day date)
    language plpgsql stable security definer set search_path = pg_catalog, trapeze, pg_temp as $$
declare
    today date := (now() at time zone 'UTC')::date;
begin
    if days_ahead is null or days_ahead not between 0 and 100 then
        raise exception 'cannot create partitions % days ahead: use 0 to 100 days', coalesce(days_ahead::text, 'null')
            using errcode = 'invalid_parameter_value';
    end if;
    return query
        select t.parent, t.day from (
            select p.parent, today + i as day
            from unnest(array['done_succeeded', 'done_failed', 'done_cancelled', 'job_events']) as p(parent), generate_series(-1, days_ahead) i
            where to_regclass('trapeze.' || p.parent || '_' || to_char(today + i, 'YYYYMMDD')) is null
            union select 'done_succeeded', (d.finished_at at time zone 'UTC')::date from trapeze.done_succeeded_default d
            union select 'done_failed', (d.finished_at at time zone 'UTC')::date from trapeze.done_failed_default d
            union select 'done_cancelled', (d.finished_at at time zone 'UTC')::date from trapeze.done_cancelled_default d
            union select 'job_events', (e.at at time zone 'UTC')::date from trapeze.job_events_default e
        ) t
        order by t.day < today, t.day, t.parent;
end $$;
-- +goose StatementEnd

-- Creates a day's partition, and moves the day's rows from the default partition to it. It returns false if the partition exists.
-- Locks, each awaited for at most 0.1 s because statements queue behind the request: ACCESS EXCLUSIVE on the default partition and SHARE
-- UPDATE EXCLUSIVE on the parent. If statements may read or write rows of that day, also ACCESS EXCLUSIVE on the parent, because a
-- statement that was planned before the commit would miss the moved rows, or fail to write to the default partition.
-- +goose StatementBegin
create function trapeze.create_day(parent text, day date) returns boolean
    language plpgsql security definer set search_path = pg_catalog, trapeze, pg_temp set lock_timeout = '100ms' as $$
declare
    name  text := parent || '_' || to_char(day, 'YYYYMMDD');
    first text := to_char(day, 'YYYY-MM-DD') || ' 00:00:00+00';
    next  text := to_char(day + 1, 'YYYY-MM-DD') || ' 00:00:00+00';
    rows  text := format('trapeze.%I where %I >= %L and %2$I < %4$L', parent || '_default',
                         case parent when 'job_events' then 'at' else 'finished_at' end, first, next);
    -- A database may have further columns, of which some may be generated.
    columns text := (select string_agg(quote_ident(attname), ', ' order by attnum) from pg_attribute
                     where attrelid = to_regclass('trapeze.' || parent) and attnum > 0 and not attisdropped and attgenerated = '');
    used  boolean;
begin
    if parent not in ('done_succeeded', 'done_failed', 'done_cancelled', 'job_events') then
        raise exception 'trapeze.% has no days to create', parent;
    end if;
    perform pg_advisory_xact_lock(420022);
    -- Only the lock of a table makes this session see a day that another one has created while this one waited.
    execute format('lock table only trapeze.%I in share update exclusive mode', parent);
    if to_regclass('trapeze.' || name) is not null then
        if not exists (select from pg_inherits where inhrelid = to_regclass('trapeze.' || name)) then
            raise exception 'trapeze.% is not a partition: attach it to trapeze.%, or rename it', name, parent;
        end if;
        return false;
    end if;
    execute 'select exists (select from ' || rows || ')' into used;
    if used or day <= (now() at time zone 'UTC')::date + 1 then
        execute format('lock table only trapeze.%I in access exclusive mode', parent);
    end if;
    execute format('create table trapeze.%I (like trapeze.%I including defaults including constraints including generated including indexes)', name, parent);
    perform trapeze.identify_partition(parent, name);
    execute format('with moved as (delete from %s returning %s) insert into trapeze.%I (%2$s) select * from moved', rows, columns, name);
    execute format('alter table trapeze.%I attach partition trapeze.%I for values from (%L) to (%L)', parent, name, first, next);
    return true;
end $$;
-- +goose StatementEnd

-- Creates all missing days in one transaction and returns how many it created. Maintenance calls create_day for each of them instead.
-- +goose StatementBegin
create function trapeze.ensure_partitions(days_ahead integer) returns integer
    language sql security definer set search_path = pg_catalog, trapeze, pg_temp as $$
    select count(*) filter (where trapeze.create_day(m.parent, m.day))::integer from trapeze.missing_days(days_ahead) m
$$;
-- +goose StatementEnd

-- They run with their owner's rights, so not everyone may call them.
revoke execute on function trapeze.missing_days(integer), trapeze.create_day(text, date), trapeze.ensure_partitions(integer),
    trapeze.identify_partition(text, text) from public;

select trapeze.identify_partition('done_succeeded', 'done_succeeded_default'), trapeze.identify_partition('done_failed', 'done_failed_default'),
    trapeze.identify_partition('done_cancelled', 'done_cancelled_default');

select trapeze.ensure_partitions(7);

-- +goose Down
drop function trapeze.ensure_partitions(integer);
drop function trapeze.create_day(text, date);
drop function trapeze.missing_days(integer);
drop function trapeze.identify_partition(text, text);
