-- Limits for submitters: approval of on-failure jobs, caps of roles, and single ids for programs that submit one job. Locks: ACCESS EXCLUSIVE on roles and
-- on cluster for an instant; three functions, of which two are replaced.

-- +goose Up
-- The highest values that a role's holders may submit; null: no cap.
alter table trapeze.roles
    add column max_priority integer,
    add column max_delay_ms bigint check (max_delay_ms >= 0),
    add column max_attempts integer check (max_attempts >= 1);

-- As before, but the job waits for approval if its lane requires that. The steps after it are marked as emitted, so that the lane's rule holds for
-- them too.
-- +goose StatementBegin
create or replace function trapeze.follow_failure() returns trigger
    language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
    was   trapeze.jobs;
    made  trapeze.jobs;
    steps json[];
begin
    select * into was from trapeze.jobs j where j.id = new.id;
    with planned as (
        select p.step, p.no, coalesce(p.step ->> 'own', '') = 'true' as own, coalesce(p.step ->> 'when', '') in ('', 'always') as follows
        from json_array_elements(coalesce((select f.plan from trapeze.fan_outs f where f.id = new.id), was.planned)) with ordinality as p(step, no)
    ), own as (
        select p.step, p.no from planned p
        where p.own and not p.follows and not exists (select from planned before where before.follows and before.no < p.no)
    ), wanted as (
        select 1 as part, o.no, o.step from own o
        union all
        select 2, f.no, f.step from trapeze.kinds k cross join json_array_elements(k.on_failure) with ordinality as f(step, no)
        where k.kind = was.kind and not exists (select from own)
        union all
        select 3, u.no, u.step from json_array_elements(new.undo) with ordinality as u(step, no)
        union all
        select 4, p.no, p.step from planned p where not p.own and not p.follows
    )
    select array_agg(w.step order by w.part, w.no) into steps from wanted w
    where new.state = 'failed' or w.step ->> 'when' = 'failed_or_cancelled';
    new.undo := null;
    if steps is null then
        return new;
    end if;
    made.kind := steps[1] ->> 'kind';
    made.args := steps[1] -> 'args';
    made.subject := coalesce(steps[1] ->> 'subject', was.subject);
    made.lane := coalesce(
        (select n.name from trapeze.lanes n where n.name = steps[1] ->> 'lane'),
        (select k.lane from trapeze.lane_kinds k where k.kind = made.kind and coalesce(steps[1] ->> 'lane', '') = ''),
        new.lane);
    made.parent_id := new.id;
    made.submitter := was.submitter;
    made.traceparent := was.traceparent;
    made.planned := (
        select json_agg(json_build_object('kind', s.step -> 'kind', 'args', s.step -> 'args', 'lane', coalesce(s.step ->> 'lane', ''),
            'subject', s.step -> 'subject', 'priority', s.step -> 'priority', 'emitted', true) order by s.no)
        from unnest(steps[2:]) with ordinality as s(step, no));
    made.id := trapeze.single_job_id();
    perform trapeze.insert_job(made, coalesce((steps[1] ->> 'priority')::integer, new.priority), null,
        exists (select from trapeze.lanes n where n.name = made.lane and n.requires_approval), null, 'system',
        case when made.planned is not null then '' end);
    new.event_no := new.event_no + 1;
    insert into trapeze.job_events (job, event_no, boot, from_state, to_state, event, fields)
    values (new.id, new.event_no, new.pod, new.state, new.state, 'job.followed', json_build_object('job', made.id::text, 'kind', made.kind));
    return new;
end $$;
-- +goose StatementEnd

alter table trapeze.cluster add column spare_id bigint not null default 0; -- the next id of trapeze.spare_job_id(); a multiple of 1000: none is left

-- An id for a process that has not reserved a block of ids. Such processes share one block after another, each up to its multiple of 1000. The row is
-- locked until the statement that reserves the id has committed.
-- +goose StatementBegin
create function trapeze.spare_job_id() returns bigint
    language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
    free bigint;
begin
    select c.spare_id into free from trapeze.cluster c where c.one for update;
    if free % 1000 = 0 or exists (select from trapeze.jobs j where j.id = free) then
        free := nextval('trapeze.job_ids');
        free := free + (free % 1000 = 0)::integer;
    end if;
    update trapeze.cluster c set spare_id = free + 1 where c.one;
    return free;
end $$;
-- +goose StatementEnd
revoke execute on function trapeze.spare_job_id() from public;
-- Roles that may add jobs may execute it.
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
        execute format('grant execute on function trapeze.spare_job_id() to %s', grantee);
    end loop;
end $$;
-- +goose StatementEnd

-- After a failover or a restore, the next spare id is of a new block.
-- +goose StatementBegin
create or replace function trapeze.move_single_job_ids() returns trigger
    language plpgsql set search_path = pg_catalog, pg_temp as $$
begin
    perform setval('trapeze.single_job_ids', greatest(j.last_value / 1000 + 1, s.last_value + 4294968)) from trapeze.job_ids j, trapeze.single_job_ids s;
    update trapeze.cluster c set spare_id = 0 where c.one;
    return null;
end $$;
-- +goose StatementEnd

-- +goose Down
-- +goose StatementBegin
create or replace function trapeze.move_single_job_ids() returns trigger
    language plpgsql set search_path = pg_catalog, pg_temp as $$
begin
    perform setval('trapeze.single_job_ids', greatest(j.last_value / 1000 + 1, s.last_value + 4294968)) from trapeze.job_ids j, trapeze.single_job_ids s;
    return null;
end $$;
-- +goose StatementEnd
drop function trapeze.spare_job_id();
alter table trapeze.cluster drop column spare_id;
-- +goose StatementBegin
create or replace function trapeze.follow_failure() returns trigger
    language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
    was   trapeze.jobs;
    made  trapeze.jobs;
    steps json[];
begin
    select * into was from trapeze.jobs j where j.id = new.id;
    with planned as (
        select p.step, p.no, coalesce(p.step ->> 'own', '') = 'true' as own, coalesce(p.step ->> 'when', '') in ('', 'always') as follows
        from json_array_elements(coalesce((select f.plan from trapeze.fan_outs f where f.id = new.id), was.planned)) with ordinality as p(step, no)
    ), own as (
        select p.step, p.no from planned p
        where p.own and not p.follows and not exists (select from planned before where before.follows and before.no < p.no)
    ), wanted as (
        select 1 as part, o.no, o.step from own o
        union all
        select 2, f.no, f.step from trapeze.kinds k cross join json_array_elements(k.on_failure) with ordinality as f(step, no)
        where k.kind = was.kind and not exists (select from own)
        union all
        select 3, u.no, u.step from json_array_elements(new.undo) with ordinality as u(step, no)
        union all
        select 4, p.no, p.step from planned p where not p.own and not p.follows
    )
    select array_agg(w.step order by w.part, w.no) into steps from wanted w
    where new.state = 'failed' or w.step ->> 'when' = 'failed_or_cancelled';
    new.undo := null;
    if steps is null then
        return new;
    end if;
    made.kind := steps[1] ->> 'kind';
    made.args := steps[1] -> 'args';
    made.subject := coalesce(steps[1] ->> 'subject', was.subject);
    made.lane := coalesce(
        (select n.name from trapeze.lanes n where n.name = steps[1] ->> 'lane'),
        (select k.lane from trapeze.lane_kinds k where k.kind = made.kind and coalesce(steps[1] ->> 'lane', '') = ''),
        new.lane);
    made.parent_id := new.id;
    made.submitter := was.submitter;
    made.traceparent := was.traceparent;
    made.planned := (
        select json_agg(json_build_object('kind', s.step -> 'kind', 'args', s.step -> 'args', 'lane', coalesce(s.step ->> 'lane', ''),
            'subject', s.step -> 'subject', 'priority', s.step -> 'priority') order by s.no)
        from unnest(steps[2:]) with ordinality as s(step, no));
    made.id := trapeze.single_job_id();
    perform trapeze.insert_job(made, coalesce((steps[1] ->> 'priority')::integer, new.priority), null, false, null, 'system',
        case when made.planned is not null then '' end);
    new.event_no := new.event_no + 1;
    insert into trapeze.job_events (job, event_no, boot, from_state, to_state, event, fields)
    values (new.id, new.event_no, new.pod, new.state, new.state, 'job.followed', json_build_object('job', made.id::text, 'kind', made.kind));
    return new;
end $$;
-- +goose StatementEnd
alter table trapeze.roles drop column max_priority, drop column max_delay_ms, drop column max_attempts;
