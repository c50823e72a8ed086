-- Days of the partitioned tables, made ahead and dropped behind. A day is made with LIKE and attached: "create table …
-- partition of" would queue every finish behind an open reader. The functions run with their owner's rights, so that a
-- runtime role needs no DDL. Locks: SHARE UPDATE EXCLUSIVE on the parent while a day is attached, ACCESS EXCLUSIVE for
-- the instant in which one is dropped.

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

-- +goose StatementBegin
create function trapeze.ensure_partitions(days_ahead integer) returns integer
    language plpgsql security definer set search_path = pg_catalog, trapeze, pg_temp as $$
declare
    parent text;
    day    date;
    name   text;
    made   integer := 0;
begin
    perform pg_advisory_xact_lock(420022);
    foreach parent in array array['done_succeeded', 'done_failed', 'done_cancelled', 'job_events'] loop
        for i in -1 .. days_ahead loop
            day  := (now() at time zone 'UTC')::date + i;
            name := parent || '_' || to_char(day, 'YYYYMMDD');
            if to_regclass('trapeze.' || name) is null then
                execute format('create table trapeze.%I (like trapeze.%I including defaults including constraints including indexes)', name, parent);
                perform trapeze.identify_partition(parent, name);
                execute format('alter table trapeze.%I attach partition trapeze.%I for values from (%L) to (%L)',
                               parent, name, day::text || ' 00:00:00+00', (day + 1)::text || ' 00:00:00+00');
                made := made + 1;
            end if;
        end loop;
    end loop;
    return made;
end $$;
-- +goose StatementEnd

-- Drops the days of a table that ended before the given moment, oldest first, at most one a call so that each holds its
-- lock for an instant; returns the name of the day dropped, or null when there is none.
-- +goose StatementBegin
create function trapeze.drop_partition(parent text, before timestamptz) returns text
    language plpgsql security definer set search_path = pg_catalog, trapeze, pg_temp as $$
declare
    day_table text;
begin
    if parent not in ('done_succeeded', 'done_failed', 'done_cancelled', 'job_events') then
        raise exception 'trapeze.% has no days to drop', parent;
    end if;
    select c.relname into day_table
    from pg_inherits i
    join pg_class c on c.oid = i.inhrelid
    join pg_class p on p.oid = i.inhparent
    join pg_namespace n on n.oid = p.relnamespace
    where n.nspname = 'trapeze' and p.relname = parent
      and to_date(right(c.relname, 8), 'YYYYMMDD') + 1 <= (before at time zone 'UTC')::date
    order by c.relname
    limit 1;
    if day_table is not null then
        execute format('drop table if exists trapeze.%I', day_table); -- another pod may be just as far
    end if;
    return day_table;
end $$;
-- +goose StatementEnd

-- They run with their owner's rights, so not everyone may call them.
revoke execute on function trapeze.ensure_partitions(integer), trapeze.identify_partition(text, text), trapeze.drop_partition(text, timestamptz) from public;

select trapeze.ensure_partitions(7);

-- +goose Down
drop function trapeze.drop_partition(text, timestamptz);
drop function trapeze.ensure_partitions(integer);
drop function trapeze.identify_partition(text, text);
