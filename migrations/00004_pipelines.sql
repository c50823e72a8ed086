-- Jobs that follow other jobs: pipelines, fan-outs, what completes a job from outside, and on-failure jobs.

-- +goose Up
create table trapeze.pipelines (
    id         bigint primary key,             -- of its first job
    name       text not null default '' check (octet_length(name) <= 200),
    created_at timestamptz not null default now()
);
comment on table trapeze.pipelines is 'One row per pipeline that has more than one job, a plan or a name, written once.';
create index pipelines_by_age on trapeze.pipelines (created_at, id);
comment on index trapeze.pipelines_by_age is 'Which pipelines are the newest?';

-- Branches are children of the job, or parts that are completed from outside.
create table trapeze.fan_outs (
    id        bigint primary key,              -- the waiting job
    fence     bigint not null,                 -- of the claim that fanned out
    branches  integer not null,
    open      integer not null,                -- branches that have not ended
    failed    integer not null default 0,
    impaired  integer not null default 0,      -- branches that succeeded although something in them had failed
    fail_fast boolean not null default false,
    ended     boolean not null default false,  -- the job does not wait any more
    outcome   text not null,                   -- its own
    result    json,                            -- its own
    plan      json                             -- the steps that follow: the join first
) with (fillfactor = 50);
comment on table trapeze.fan_outs is 'One row per job that waits, or has waited, for branches.';
create index fan_outs_off_balance on trapeze.fan_outs (id)
    where (open = 0) <> ended or (fail_fast and failed > 0 and not ended);
comment on index trapeze.fan_outs_off_balance is 'Whose job is to be ended, and whose branches are to be cancelled? It is empty most of the time.';

create table trapeze.deferrals (
    id    bigint primary key,                  -- the job
    token text not null
);
comment on table trapeze.deferrals is 'One row per job that is completed from outside, with the token that completes it.';

create table trapeze.parts (
    id           bigint not null,              -- the deferred job
    part         text not null check (octet_length(part) <= 500),
    result       json,
    error        text,                         -- null: it succeeded
    completed_at timestamptz not null default now(),
    primary key (id, part)
);
comment on table trapeze.parts is 'One row per part of a deferred job that was completed from outside.';

create table trapeze.kinds (
    kind        text primary key,
    on_failure  json,                                         -- as jobs.planned
    max_crashes integer check (max_crashes > 0),              -- null: what the pod that recovers the job says
    per_key     integer check (per_key > 0),                  -- how many jobs of each key may run at a time; null: no limit
    start_within_ms bigint check (start_within_ms > 0)        -- of becoming due; a job that starts later fails; null: no limit
);
comment on table trapeze.kinds is 'One row per kind for which the pods declare on-failure jobs or limits: of crashes, per key, of the start.';

-- The time in milliseconds within which a new job must start once it is due: the smaller of its kind's and its lane's, or null if neither has one. The
-- planner inlines the function. A lane that exists costs one probe.
-- +goose StatementBegin
create function trapeze.start_within(kind text, lane text) returns setof bigint language sql stable begin atomic
    select least((select k.start_within_ms from trapeze.kinds k where k.kind = start_within.kind),
        1000::bigint * nullif(coalesce((select coalesce(n.start_within_s, 0) from trapeze.lanes n where n.name = start_within.lane),
            (select t.start_within_s from trapeze.lane_rules(start_within.lane) t)), 0));
end;
-- +goose StatementEnd

-- For people, dashboards and SQL.
create view trapeze.job as
select j.id, j.kind, p.lane, j.subject, j.key, p.state,
       exists (select from trapeze.subjects c where c.kind = j.kind and c.subject = j.subject and j.id =
           case when c.state = 'free' or exists (select from trapeze.live l where l.id = c.job_id and l.state = 'running') then c.job_id else c.previous_job end) as is_current,
       p.priority, p.attempt, j.max_attempts, p.crashes, p.fence, p.epoch, p.pod, j.pipeline_id, j.parent_id, j.step,
       j.args, j.planned, p.result, p.outcome, p.reason, p.error,
       coalesce(g.done, f.branches - f.open) as progress_done, coalesce(g.total, f.branches) as progress_total,
       g.message as progress_message,
       j.unique_key, j.submitter, j.created_at, p.run_after, p.started_at, p.finished_at, p.cancel_requested, p.event_no,
       j.group_id, j.child_no, j.impaired, p.error_class, p.error_code, coalesce(j.replaced, 0) as replaced
from trapeze.jobs j
join (
    select id, lane, state, priority, attempt, crashes, fence, epoch, pod, null::json as result, null::text as outcome,
           case when cancel_requested then 'cancel_requested' end as reason, null::text as error,
           case when ready_at > 'epoch' then ready_at end as run_after, started_at, null::timestamptz as finished_at,
           cancel_requested, event_no, null::text as error_class, null::text as error_code
    from trapeze.live
    union all
    select id, lane, case why when 'approval' then 'awaiting_approval' when 'children' then 'waiting' else 'pending' end,
           priority, attempt, crashes, fence, epoch, null::uuid, null::json, null::text,
           why, null::text, run_after, started_at, null::timestamptz, false, event_no, null::text, null::text
    from trapeze.parked
    union all
    select id, lane, state, priority, attempt, crashes, fence, epoch, pod, result, outcome,
           reason, error, null::timestamptz, started_at, finished_at, false, event_no, error_class, error_code
    from trapeze.done
) p using (id)
left join trapeze.job_progress g using (id)
left join trapeze.fan_outs f using (id);
comment on view trapeze.job is 'One row per job, with one state, wherever the job is.';

-- The status of a pipeline is that of the last job of its spine.
create view trapeze.pipeline as
select p.id, p.name,
       case when t.state not in ('succeeded', 'failed', 'cancelled') then 'running'
            when t.state = 'succeeded' and (t.impaired or t.reason = 'children_failed') then 'partial'
            else t.state end as status,
       t.kind, t.id as last_job, t.step,
       -- The steps after a fan-out, its join first, are planned when its job begins to wait.
       case when t.state not in ('succeeded', 'failed', 'cancelled')
            then coalesce((select f.plan from trapeze.fan_outs f where f.id = t.id), t.planned) end as planned,
       t.progress_done, t.progress_total, t.progress_message, t.reason, t.error, p.created_at, t.finished_at
from trapeze.pipelines p
cross join lateral (
    select coalesce((
        select j.id from trapeze.jobs j
        where j.pipeline_id = p.id and coalesce(j.group_id, 0) = 0 and coalesce(j.child_no, 0) = 0 and j.step > 0
        order by j.step desc limit 1), p.id) as id
) last
join trapeze.job t on t.id = last.id;
comment on view trapeze.pipeline is 'One row per pipeline, with the status of the last job of its spine.';

-- Inserts a job that begins a pipeline, and wakes the listening pods. A job with a subject is parked as due: the transaction may stay open, and must not
-- hold the guard of the subject meanwhile. The pods that it wakes promote the job. The same holds for a job of a lane that is still to be made.
-- +goose StatementBegin
create function trapeze.insert_job(j trapeze.jobs, priority integer, run_at timestamptz, approval boolean, unique_while text, actor text,
        pipeline text, start_by timestamptz) returns void
    language plpgsql set search_path = pg_catalog, pg_temp as $$
begin
    j.pipeline_id := j.id;
    j.step := 0;
    j.impaired := false;
    j.ordered := coalesce(j.ordered, false);
    j.created_at := now();
    j.xid := pg_current_xact_id();
    insert into trapeze.jobs select (j).*;
    if pipeline is not null then
        insert into trapeze.pipelines (id, name) values (j.id, pipeline) on conflict do nothing;
    end if;
    if approval or run_at > now() or j.subject <> '' or j.key is not null
        or not exists (select from trapeze.lanes n where n.name = j.lane and n.idle_since is null) then
        insert into trapeze.parked (id, why, run_after, event_no, priority, unique_while, lane, kind, subject, key, start_by)
        values (j.id, case when approval then 'approval' else 'scheduled' end, coalesce(run_at, now()), 1, priority, unique_while, j.lane, j.kind, j.subject, j.key, start_by);
    else
        insert into trapeze.live (id, ready_at, event_no, priority, state, unique_while, lane, kind, subject, start_by)
        values (j.id, now(), 1, priority, 'pending', unique_while, j.lane, j.kind, j.subject, start_by);
    end if;
    insert into trapeze.job_events (jobs, event_nos, from_state, to_state, event, actor)
    values (array[j.id], array[1], '', case when approval then 'awaiting_approval' else 'pending' end, 'job.enqueued', actor);
    perform pg_notify('trapeze' || '_wake', '');
end $$;
-- +goose StatementEnd

-- On-failure jobs are steps in the plan of the job, in that of its kind, or with its end. They become a separate pipeline in the commit that fails or
-- cancels the job, on every path that ends it. Submitted are the steps for the job's own failure, or else those of its kind; then the compensations of
-- the run that ended; then those of the steps before it, the latest first. They are one chain. Its first job waits for approval if its lane requires
-- that. The steps after it are marked as emitted, so that the lane's rule holds for them too. Start limits of kinds and
-- lanes do not apply to any of them: compensation must run. The function has its owner's rights, for it runs in
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
        (select steps[1] ->> 'lane' from trapeze.lane_rules(steps[1] ->> 'lane') n),
        (select k.lane from trapeze.lane_kinds k where k.kind = made.kind and coalesce(steps[1] ->> 'lane', '') = ''),
        new.lane);
    made.key := nullif(coalesce(steps[1] ->> 'key', was.key), '');
    made.parent_id := new.id;
    made.submitter := was.submitter;
    made.ordered := was.ordered and made.subject <> '';
    made.traceparent := was.traceparent;
    made.planned := (
        select json_agg(json_build_object('kind', s.step -> 'kind', 'args', s.step -> 'args', 'lane', coalesce(s.step ->> 'lane', ''),
            'subject', s.step -> 'subject', 'key', s.step -> 'key', 'priority', s.step -> 'priority', 'emitted', true, 'unlimited', true) order by s.no)
        from unnest(steps[2:]) with ordinality as s(step, no));
    made.id := trapeze.single_job_id();
    perform trapeze.insert_job(made, coalesce((steps[1] ->> 'priority')::integer, new.priority), null,
        exists (select from trapeze.lane_rules(made.lane) n where n.requires_approval), null, 'system',
        case when made.planned is not null then '' end, null);
    new.event_no := new.event_no + 1;
    insert into trapeze.job_events (job, event_no, pod, from_state, to_state, event, fields)
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

revoke execute on function trapeze.insert_job(trapeze.jobs, integer, timestamptz, boolean, text, text, text, timestamptz), trapeze.follow_failure() from public;

-- +goose Down
drop trigger follow_failure on trapeze.done_cancelled;
drop trigger follow_failure on trapeze.done_failed;
drop function trapeze.follow_failure(), trapeze.insert_job(trapeze.jobs, integer, timestamptz, boolean, text, text, text, timestamptz);
drop function trapeze.start_within(text, text);
drop view trapeze.pipeline, trapeze.job;
drop table trapeze.kinds, trapeze.parts, trapeze.deferrals, trapeze.fan_outs, trapeze.pipelines;
