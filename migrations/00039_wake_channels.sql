-- Wake-ups reach the few pods that can run a job instead of all pods. Locks: ACCESS EXCLUSIVE on pods for an instant, without rewriting a row.

-- +goose Up
alter table trapeze.pods
    add column wake_channel text,    -- on which the pod alone listens; '': it does not listen; null: a pod of an earlier release
    add column free_slots integer;   -- at its latest heartbeat, or 0 since it passed on a wake-up

-- Wakes pods for new jobs of a kind in a lane, when the transaction commits: pods that reported enough free slots, and at least two pods of
-- each set of kinds, because a report may be out of date. A lane that limits the slots of each pod wakes them all, and a lane whose slots
-- are all granted wakes the pods that hold them, because only they can start a job. A role that may not read the grants wakes all pods then.
-- It does not wake the caller's pod.
-- +goose StatementBegin
create function trapeze.wake(for_lane text, for_kind text, jobs integer, caller uuid) returns void
    language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
    every_pod boolean;
    holders   uuid[];
begin
    every_pod := exists (select from trapeze.lanes n where n.name = for_lane and (n.slots_per_pod is not null or n.granted >= n.slots));
    if every_pod and has_table_privilege('trapeze.slot_grants', 'select') then
        select array_agg(g.boot), every(n.slots_per_pod is not null) into holders, every_pod
        from trapeze.lanes n left join trapeze.slot_grants g on g.lane = n.name and g.slots > 0 where n.name = for_lane;
    end if;
    perform pg_notify(w.channel, '') from (
        with reachable as materialized (
            select p.boot, p.kinds, p.engines, coalesce(p.wake_channel, 'trapeze' || '_wake') as channel, coalesce(p.free_slots, 1) as free,
                p.lease_until > max(p.lease_until) over (partition by p.kinds, p.engines) - interval '3 seconds' as lively
            from trapeze.pods p
            where p.closed_at is null and p.lease_until > now() and not p.draining and not p.drained and p.wake_channel is distinct from ''
                and p.boot is distinct from caller and (for_kind = any(p.kinds) or p.engines <> '{}')
        ), ranked as (
            select o.boot, o.channel, o.free, row_number() over best as place, sum(o.free) over best - o.free as before
            from reachable o
            window best as (partition by o.kinds, o.engines order by o.free > 0 desc, o.lively desc, random())
        )
        select distinct r.channel from ranked r
        where r.place <= 2 or r.free > 0 and r.before < jobs or every_pod or r.boot = any(holders)
    ) w;
end $$;
-- +goose StatementEnd

-- +goose StatementBegin
create or replace function trapeze.insert_job(j trapeze.jobs, priority integer, run_at timestamptz, approval boolean, unique_while text, actor text,
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
    perform trapeze.wake(j.lane, j.kind, 1, null);
end $$;
-- +goose StatementEnd

-- +goose Down
-- +goose StatementBegin
create or replace function trapeze.insert_job(j trapeze.jobs, priority integer, run_at timestamptz, approval boolean, unique_while text, actor text,
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
drop function trapeze.wake(text, text, integer, uuid);
alter table trapeze.pods drop column wake_channel, drop column free_slots;
