-- On-failure jobs: steps in the plan of the job, in that of its kind, or with its end, which become a separate pipeline in the commit that fails
-- or cancels the job, on every path that ends it. Locks: ACCESS EXCLUSIVE on done and its days for an instant; no row is
-- rewritten.

-- +goose Up
-- The ids of jobs that the database makes are these times 1000. No process of this release uses such an id of its blocks; those that earlier
-- ones have used, or may still use, are passed over.
create sequence trapeze.single_job_ids;
select setval('trapeze.single_job_ids', greatest((select max(j.id) from trapeze.jobs j), s.last_value) / 1000 + 1000000) from trapeze.job_ids s where s.is_called;

-- The declarations of kinds by the pods that run them. A kind without on-failure jobs has no row.
create table trapeze.kinds (
    kind       text primary key,
    on_failure json not null                   -- as jobs.planned
);

alter table trapeze.done add column undo json; -- compensations that the last run asked for, as jobs.planned; null once they are submitted

-- An id for a job that the database makes.
-- +goose StatementBegin
create function trapeze.single_job_id() returns bigint
    language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
    free bigint;
begin
    loop
        free := nextval('trapeze.single_job_ids') * 1000;
        exit when not exists (select from trapeze.jobs j where j.id = free);
        -- A restore has left the sequence behind. One transaction at a time moves it, and never back.
        perform pg_advisory_xact_lock(420028);
        perform setval('trapeze.single_job_ids', greatest((select max(j.id) from trapeze.jobs j) / 1000 + 1, s.last_value)) from trapeze.single_job_ids s;
    end loop;
    return free;
end $$;
-- +goose StatementEnd

-- Inserts a job that begins a pipeline, and wakes the listening pods.
-- +goose StatementBegin
create function trapeze.insert_job(j trapeze.jobs, priority integer, run_at timestamptz, approval boolean, unique_while text, actor text,
        pipeline text) returns void
    language plpgsql set search_path = pg_catalog, pg_temp as $$
begin
    j.pipeline_id := j.id;
    j.step := 0;
    j.impaired := false;
    j.created_at := now();
    j.xid := pg_current_xact_id();
    insert into trapeze.jobs select (j).*;
    if pipeline is not null then
        insert into trapeze.pipelines (id, name) values (j.id, pipeline) on conflict do nothing;
    end if;
    if approval or run_at > now() then
        insert into trapeze.parked (id, why, run_after, event_no, priority, unique_while, lane, kind, subject)
        values (j.id, case when approval then 'approval' else 'scheduled' end, coalesce(run_at, now()), 1, priority, unique_while, j.lane, j.kind, j.subject);
    else
        insert into trapeze.live (id, ready_at, event_no, priority, state, unique_while, lane, kind, subject)
        values (j.id, now(), 1, priority, 'pending', unique_while, j.lane, j.kind, j.subject);
    end if;
    insert into trapeze.job_events (jobs, event_nos, from_state, to_state, event, actor)
    values (array[j.id], array[1], '', case when approval then 'awaiting_approval' else 'pending' end, 'job.enqueued', actor);
    perform pg_notify('trapeze' || '_wake', '');
end $$;
-- +goose StatementEnd

-- Submits the on-failure jobs of a job that ends here: the steps for its own failure, or else those of its kind; then the compensations of the
-- run that ended; then those of the steps before it, the latest first. They are one chain. It has its owner's rights, for it runs in
-- statements of every role that ends jobs. Rows that are loaded or moved have ended before, and are passed over.
-- +goose StatementBegin
create function trapeze.follow_failure() returns trigger
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
create trigger follow_failure before insert on trapeze.done_failed for each row when (new.finished_at = now() and not trapeze.applies_subscription())
    execute function trapeze.follow_failure();
alter table trapeze.done_failed enable always trigger follow_failure;
create trigger follow_failure before insert on trapeze.done_cancelled for each row when (new.finished_at = now() and not trapeze.applies_subscription())
    execute function trapeze.follow_failure();
alter table trapeze.done_cancelled enable always trigger follow_failure;

-- After a failover or a restore, settle_history has moved job_ids far above the ids that may have been lost, and this sequence follows. It moves as
-- far, 2^32 / 1000, if it is above job_ids: pruned jobs may have had these ids.
-- +goose StatementBegin
create function trapeze.move_single_job_ids() returns trigger
    language plpgsql set search_path = pg_catalog, pg_temp as $$
begin
    perform setval('trapeze.single_job_ids', greatest(j.last_value / 1000 + 1, s.last_value + 4294968)) from trapeze.job_ids j, trapeze.single_job_ids s;
    return null;
end $$;
-- +goose StatementEnd
create trigger move_single_job_ids after update on trapeze.cluster for each row when (old.history is distinct from new.history
    and not trapeze.applies_subscription()) execute function trapeze.move_single_job_ids();
alter table trapeze.cluster enable always trigger move_single_job_ids;
revoke execute on function trapeze.single_job_id(), trapeze.insert_job(trapeze.jobs, integer, timestamptz, boolean, text, text, text),
    trapeze.follow_failure(), trapeze.move_single_job_ids() from public;

-- +goose Down
drop trigger move_single_job_ids on trapeze.cluster;
drop function trapeze.move_single_job_ids();
drop trigger follow_failure on trapeze.done_cancelled;
drop trigger follow_failure on trapeze.done_failed;
drop function trapeze.follow_failure();
drop function trapeze.single_job_id();
drop function trapeze.insert_job(trapeze.jobs, integer, timestamptz, boolean, text, text, text);
alter table trapeze.done drop column undo;
drop table trapeze.kinds;
drop sequence trapeze.single_job_ids;
