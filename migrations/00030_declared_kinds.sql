-- The crash limit of each kind, for jobs that SQL submits. The rights to move the sequence of job ids. A limit to the depth of arguments. Locks: ACCESS EXCLUSIVE on kinds for an instant; no row is rewritten.

-- +goose Up
-- A kind with neither has no row.
alter table trapeze.kinds
    alter column on_failure drop not null,
    add column max_crashes integer check (max_crashes > 0);   -- null: what the pod that recovers the job says

-- check_nesting refuses JSON that the library would not read: its readers stop at twice this depth.
-- +goose StatementBegin
create function trapeze.check_nesting(kind text, args json) returns void
    language plpgsql immutable set search_path = pg_catalog, pg_temp as $$
declare
    brackets text := args::text;
    depth    integer;
begin
    if length(brackets) - length(translate(brackets, '[{', '')) <= 5000 then
        return;
    end if;
    brackets := regexp_replace(regexp_replace(brackets, E'"([^"\\\\]|\\\\.)*"', '', 'g'), '[^][{}]', '', 'g');
    select max(s.depth) into depth from (
        select sum(case when b.c in ('[', '{') then 1 else -1 end) over (order by b.n) as depth
        from regexp_split_to_table(brackets, '') with ordinality as b(c, n)
    ) s;
    if depth > 5000 then
        raise exception 'invalid args: JSON nested % deep, at most 5000 (the args of %)', depth, kind using errcode = 'TZ005';
    end if;
end $$;
-- +goose StatementEnd

-- Refuses the parameters that the library refuses. The codes are those of runner.EnqueueSQL.
-- +goose StatementBegin
create or replace function trapeze.check_job(what text, kind text, args json, lane text, subject text, priority integer) returns void
    language plpgsql stable set search_path = pg_catalog, pg_temp as $$
begin
    if kind is null or octet_length(kind) > 100 or kind !~ '^[A-Za-z0-9_][A-Za-z0-9_.:/@+-]*$' then
        raise exception 'invalid submission: % of kind %: want 1 to 100 letters, digits and _ . : / @ + - (ASCII), the first a letter, a digit or _',
            what, coalesce('"' || left(kind, 100) || '"', 'null') using errcode = 'TZ001';
    end if;
    if octet_length(args::text) > 1048576 then
        raise exception 'too large: % bytes of JSON, at most 1048576 (the args of %)', octet_length(args::text), kind using errcode = 'TZ004';
    end if;
    begin
        perform args::jsonb;
    exception when others then
        raise exception 'invalid args: the args of %: %', kind, sqlerrm using errcode = 'TZ005';
    end;
    perform trapeze.check_nesting(kind, args);
    if lane <> '' and not exists (select from trapeze.lanes n where n.name = check_job.lane) then
        raise exception 'unknown lane: submit % to lane "%"', kind, lane using errcode = 'TZ002';
    end if;
    if octet_length(subject) > 500 then
        raise exception 'invalid submission: subject of % bytes, at most 500 (kind %)', octet_length(subject), kind using errcode = 'TZ001';
    end if;
    if priority not between -100 and 100 then
        raise exception 'invalid submission: priority %, want -100 to 100 (kind %)', priority, kind using errcode = 'TZ001';
    end if;
end $$;
-- +goose StatementEnd

-- These move the sequence of job ids, with their owner's rights. Roles that may add jobs keep the right to execute them; a producer in SQL, which
-- may execute enqueue alone, has no use for it.
revoke execute on function trapeze.settle_history(), trapeze.advance_job_ids(bigint) from public;
-- +goose StatementBegin
do $$
declare
    grantee text;
begin
    for grantee in
        select distinct case a.grantee when 0 then 'public' else quote_ident(pg_get_userbyid(a.grantee)) end
        from pg_class c cross join aclexplode(c.relacl) a
        where c.oid = 'trapeze.jobs'::regclass and a.privilege_type = 'INSERT'
    loop
        execute format('grant execute on function trapeze.settle_history(), trapeze.advance_job_ids(bigint) to %s', grantee);
    end loop;
end $$;
-- +goose StatementEnd
revoke execute on function trapeze.check_nesting(text, json) from public;

-- +goose Down
grant execute on function trapeze.settle_history(), trapeze.advance_job_ids(bigint) to public;
-- +goose StatementBegin
create or replace function trapeze.check_job(what text, kind text, args json, lane text, subject text, priority integer) returns void
    language plpgsql stable set search_path = pg_catalog, pg_temp as $$
begin
    if kind is null or octet_length(kind) > 100 or kind !~ '^[A-Za-z0-9_][A-Za-z0-9_.:/@+-]*$' then
        raise exception 'invalid submission: % of kind %: want 1 to 100 letters, digits and _ . : / @ + - (ASCII), the first a letter, a digit or _',
            what, coalesce('"' || left(kind, 100) || '"', 'null') using errcode = 'TZ001';
    end if;
    if octet_length(args::text) > 1048576 then
        raise exception 'too large: % bytes of JSON, at most 1048576 (the args of %)', octet_length(args::text), kind using errcode = 'TZ004';
    end if;
    begin
        perform args::jsonb;
    exception when others then
        raise exception 'invalid args: the args of %: %', kind, sqlerrm using errcode = 'TZ005';
    end;
    if lane <> '' and not exists (select from trapeze.lanes n where n.name = check_job.lane) then
        raise exception 'unknown lane: submit % to lane "%"', kind, lane using errcode = 'TZ002';
    end if;
    if octet_length(subject) > 500 then
        raise exception 'invalid submission: subject of % bytes, at most 500 (kind %)', octet_length(subject), kind using errcode = 'TZ001';
    end if;
    if priority not between -100 and 100 then
        raise exception 'invalid submission: priority %, want -100 to 100 (kind %)', priority, kind using errcode = 'TZ001';
    end if;
end $$;
-- +goose StatementEnd
drop function trapeze.check_nesting(text, json);
delete from trapeze.kinds where on_failure is null;
alter table trapeze.kinds
    alter column on_failure set not null,
    drop column max_crashes;
