-- Submissions from SQL. Producers name the parameters, and have the right to execute enqueue alone; it has its owner's rights. A
-- function of this name and these parameters stays as long as there are producers: later releases add functions with other names.

-- +goose Up

-- Refuses JSON that the library would not read: its readers stop at twice this depth.
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
create function trapeze.check_job(what text, kind text, args json, lane text, subject text, priority integer) returns void
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
    if lane <> '' and not exists (select from trapeze.lane_rules(check_job.lane)) then
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

-- One step of a plan as a program submits it: {"kind", "args", "lane", "subject", "key", "priority", "when", "own"}, all but the kind optional.
-- +goose StatementBegin
create function trapeze.checked_step(what text, step json, on_failure boolean) returns text
    language plpgsql stable set search_path = pg_catalog, pg_temp as $$
declare
    wrong text;
begin
    if json_typeof(step) <> 'object' then
        raise exception 'invalid submission: % is %, want an object with a kind', what, coalesce(json_typeof(step), 'null') using errcode = 'TZ001';
    end if;
    select k into wrong from json_object_keys(step) k
    where k <> all ('{kind,args,lane,subject,key,priority,when,own}'::text[]);
    if wrong is not null then
        raise exception 'invalid submission: % has a member %, want kind, args, lane, subject, key, priority, when or own', what, wrong using errcode = 'TZ001';
    end if;
    if not coalesce(step ->> 'priority', '0') ~ '^-?[0-9]{1,9}$' or not coalesce(step ->> 'own', 'false') in ('true', 'false') then
        raise exception 'invalid submission: % has a priority or own that cannot be', what using errcode = 'TZ001';
    end if;
    perform trapeze.check_job(what, step ->> 'kind', coalesce(step -> 'args', '{}'), step ->> 'lane', coalesce(step ->> 'subject', ''),
        (step ->> 'priority')::integer);
    if octet_length(step ->> 'key') > 200 or step ->> 'key' = '*' then
        raise exception 'invalid submission: key of more than 200 bytes, or * (%)', what using errcode = 'TZ001';
    end if;
    if (step ->> 'own')::boolean and coalesce(step ->> 'when', '') = '' and not on_failure then
        raise exception 'invalid submission: % is own, and does not say when', what using errcode = 'TZ001';
    end if;
    if step ->> 'when' not in ('', 'failed', 'failed_or_cancelled') then
        raise exception 'invalid submission: % follows when "%", want failed or failed_or_cancelled', what, step ->> 'when' using errcode = 'TZ001';
    end if;
    -- As the library writes it, so that an idempotency key takes both for the same.
    return concat('{"kind":', to_json(step ->> 'kind'), ',"args":', coalesce(step -> 'args', '{}'), ',"lane":' || to_json(nullif(step ->> 'lane', '')),
        ',"subject":' || to_json(step ->> 'subject'), ',"key":' || to_json(step ->> 'key'), ',"priority":' || (step ->> 'priority')::integer,
        ',"when":' || to_json(coalesce(nullif(step ->> 'when', ''), case when on_failure then 'failed' end)),
        case when on_failure or (step ->> 'own')::boolean then ',"own":true' end, '}');
end $$;
-- +goose StatementEnd

-- Replaces the args of a waiting job whose unique key this transaction has locked, together with its planned steps and trace. A debounced job that is not
-- due yet becomes due later, but never before now because of a limit that has passed. If the new args need approval, the job is sent back for it, in its next
-- epoch, and its subject becomes free. Otherwise, no row of live or parked is locked: what happens to these does not depend on the args.
-- It returns ended if the job has ended, so that the caller reserves the key again, and refused if the job must keep its args, with what differs. A job that
-- has been claimed meanwhile is neither. The library calls it with its caller's rights. Plan: primary key lookups.
-- +goose StatementBegin
create function trapeze.replace_job(
        holder bigint, kind text, unique_key text, submitter text, subject text, key text, args json, planned json, traceparent text, pipeline text,
        needs_approval boolean, debounce interval, debounce_max interval, actor text,
        out ended boolean, out replaced boolean, out awaiting boolean, out due_in interval, out refused text)
    language plpgsql set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_column
declare
    sent_back bigint;
begin
    with place as materialized (
        (select l.lane, '' as why, l.unique_while from trapeze.live l where l.id = holder limit 1)
        union all
        (select p.lane, p.why, p.unique_while from trapeze.parked p where p.id = holder limit 1)
    ), waits as materialized (
        select case when j.submitter is distinct from replace_job.submitter then 'submitter'
                when j.subject <> replace_job.subject or j.key is distinct from replace_job.key then 'subject or key'
                when j.planned is not null and replace_job.planned is null then 'planned steps' end as differs,
            coalesce(needs_approval, (select n.requires_approval from trapeze.lane_rules(p.lane) n), false) or p.why = 'approval' as asks
        from place p join trapeze.jobs j on j.id = holder where p.unique_while = 'pending' limit 1
    ), changed as (
        update trapeze.jobs j set args = replace_job.args, planned = replace_job.planned, traceparent = replace_job.traceparent,
            replaced = coalesce(j.replaced, 0) + 1
        from waits w where j.id = holder and w.differs is null
        returning j.id, j.replaced, j.created_at
    ), moved as (
        update trapeze.parked p set run_after = least(now() + debounce, greatest(c.created_at + debounce_max, least(p.run_after, now())))
        from changed c where p.id = c.id and p.why in ('scheduled', 'approval') and debounce > interval '0'
        returning p.run_after
    ), marked as (
        update trapeze.unique_keys u set replaced = c.replaced from changed c where u.kind = replace_job.kind and u.key = replace_job.unique_key
    ), named as (
        insert into trapeze.pipelines (id, name) select c.id, pipeline from changed c where pipeline is not null on conflict (id) do nothing
    )
    select not exists (select from place), exists (select from changed), coalesce((select w.asks and w.differs is null from waits w), false),
        (select m.run_after - now() from moved m), (select w.differs from waits w)
    into ended, replaced, awaiting, due_in, refused;
    if not awaiting then
        return;
    end if;
    for try in 1 .. 4 loop -- the job can be promoted or admitted between the two statements, and then it is in the other table
        with gone as (
            delete from trapeze.live where id = holder and state = 'pending' and unique_while = 'pending' returning *
        ), back as (
            insert into trapeze.parked (why, run_after, id, started_at, fence, event_no, epoch, attempt, crashes, priority, isolated, unique_while, lane, kind,
                subject, key, start_by)
            select 'approval', coalesce(due_at, ready_at), id, started_at, fence, event_no + 1, epoch + 1, attempt, crashes, priority, isolated, unique_while,
                lane, kind, subject, key, start_by from gone
        ), released as (
            update trapeze.subjects c set state = 'free', job_id = c.previous_job, previous_job = null
            from gone g where g.subject <> '' and c.kind = g.kind and c.subject = g.subject and c.job_id = g.id and c.state = 'held'
                and exists (select from trapeze.jobs j where j.id = c.previous_job and j.subject = c.subject offset 0)
        ), deleted_guards as (
            delete from trapeze.subjects c
            using gone g where g.subject <> '' and c.kind = g.kind and c.subject = g.subject and c.job_id = g.id and c.state = 'held'
                and not exists (select from trapeze.jobs j where j.id = c.previous_job and j.subject = c.subject offset 0)
        ), event as (
            insert into trapeze.job_events (job, event_no, fence, from_state, to_state, event, actor, fields)
            select id, event_no + 1, fence, 'pending', 'awaiting_approval', 'job.replaced', actor, json_build_object('epoch', epoch + 1) from gone
        )
        select id into sent_back from gone;
        exit when sent_back is not null;
        with held as materialized (
            select p.id, p.why from trapeze.parked p where p.id = holder and p.unique_while = 'pending' for update
        ), back as (
            update trapeze.parked p set why = 'approval', event_no = p.event_no + 1, epoch = p.epoch + 1 from held h where p.id = h.id
            returning p.id, p.event_no, p.fence, p.epoch
        ), event as (
            insert into trapeze.job_events (job, event_no, fence, from_state, to_state, event, actor, fields)
            select b.id, b.event_no, b.fence, case h.why when 'approval' then 'awaiting_approval' else 'pending' end, 'awaiting_approval', 'job.replaced', actor,
                json_build_object('epoch', b.epoch) from back b join held h on h.id = b.id
        )
        select id into sent_back from back;
        exit when sent_back is not null;
    end loop;
    ended := sent_back is null;
    replaced := not ended;
end $$;
-- +goose StatementEnd

-- Returns how long a new throttled job has to wait: no earlier than an interval after the start of the last throttled job of its unique key, which this
-- transaction has locked, so that throttled_at has the order in which the jobs took it. Null if no such job has started. That job does not wait any more: it
-- would otherwise hold the key, or it was cancelled before its start. No table stores the starts of keys: the rows of the jobs contain them, and go away
-- with the jobs. Plan: jobs_throttled backwards, to the first job that has started; primary key lookups.
-- +goose StatementBegin
create function trapeze.throttle_delay(kind text, unique_key text, throttle interval) returns interval
    language plpgsql stable set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_column
begin
    return (select greatest(interval '0', s.started_at - now() + throttle)
        from trapeze.jobs j cross join lateral (
            (select l.started_at from trapeze.live l where l.id = j.id limit 1)
            union all
            (select p.started_at from trapeze.parked p where p.id = j.id limit 1)
            union all
            (select d.started_at from trapeze.done d where d.id = j.id and d.finished_at >= j.created_at - interval '1 day' limit 1)
            limit 1
        ) s
        where j.kind = throttle_delay.kind and j.unique_key = throttle_delay.unique_key and j.throttled_at is not null and s.started_at is not null
        order by j.kind, j.unique_key, j.throttled_at desc limit 1);
end $$;
-- +goose StatementEnd

-- Submits a job in the caller's transaction: it exists if and only if that commits, and the commit wakes the listening pods. The job is
-- submitted by session_user; a role that may insert into trapeze.jobs may name another submitter. The answer is the job, or that of an earlier
-- submission with the same key, and where that is now.
-- +goose StatementBegin
create function trapeze.enqueue(
        kind text, args json default '{}', lane text default null, subject text default '', priority integer default 10,
        run_at timestamptz default null, idempotency_key text default null, unique_key text default null, unique_while text default 'active',
        max_attempts integer default null, chain json default null, on_failure json default null, submitter text default null,
        pipeline text default null, needs_approval boolean default false, traceparent text default null, key text default null,
        ordered boolean default false, start_by timestamptz default null, replace boolean default false, debounce interval default null,
        debounce_max interval default null, throttle interval default null,
        out id bigint, out pipeline_id bigint, out state text, out duplicate boolean, out replaced boolean)
    language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
<<e>>
declare
    j           trapeze.jobs;
    planned     text[];
    idempotency text;
    fingerprint bytea;
    held        bytea;
    holder      bigint;
    approval    boolean;
    wrong       text;
    step        json;
    no          bigint;
    ended       boolean := false;
    awaiting    boolean := false;
    refused     text;
begin
    args := coalesce(args, '{}');
    subject := coalesce(subject, '');
    priority := coalesce(priority, 10);
    submitter := coalesce(submitter, session_user);
    replace := coalesce(replace, false) or coalesce(debounce, debounce_max, throttle) is not null;
    if getdatabaseencoding() <> 'UTF8' then -- the library reads all texts as UTF-8, so one that is not would block its lane
        begin
            perform convert_to(concat(kind, args, lane, subject, idempotency_key, unique_key, chain, on_failure, submitter, pipeline, traceparent, key), 'UTF8');
        exception when character_not_in_repertoire or untranslatable_character then
            raise exception 'invalid submission: text that is not UTF-8' using errcode = 'TZ001';
        end;
    end if;
    perform trapeze.check_job('job', kind, args, lane, subject, priority);
    wrong := case
        when submitter <> session_user and not has_table_privilege(session_user, 'trapeze.jobs', 'insert') then
            format('submitter %L: the role %s may not name another', submitter, session_user)
        when octet_length(submitter) > 200 then 'submitter of more than 200 bytes'
        when octet_length(key) > 200 or key = '*' then 'key of more than 200 bytes, or *'
        when octet_length(pipeline) > 200 then 'pipeline of more than 200 bytes'
        when octet_length(traceparent) > 55 then 'traceparent of more than 55 bytes'
        when idempotency_key = '' or octet_length(idempotency_key) > 500 then 'idempotency_key of 0 or more than 500 bytes'
        when unique_key = '' or octet_length(unique_key) > 500 then 'unique_key of 0 or more than 500 bytes'
        when unique_key is not null and coalesce(unique_while, '') not in ('pending', 'active') then format('unique_while %L, want pending or active', unique_while)
        when replace and unique_key is null then 'replace, debounce and throttle need a unique_key'
        when replace and unique_while <> 'pending' then 'replace needs unique_while pending: a running job does not see new args'
        when coalesce(debounce, debounce_max) is not null and (debounce > interval '0') is not true then format('debounce of %s, want more than 0', coalesce(debounce::text, 'null'))
        when debounce is not null and (debounce_max >= debounce) is not true then format('debounce_max of %s, want at least debounce', coalesce(debounce_max::text, 'null'))
        when throttle <= interval '0' then format('throttle of %s, want more than 0', throttle)
        when throttle is not null and debounce is not null then 'throttle with debounce: want one of them'
        when coalesce(debounce, throttle) is not null and run_at > now() then 'debounce or throttle with run_at: they set the time'
        when max_attempts < 1 then 'max_attempts below 1'
        when run_at >= '9999-01-01' then 'run_at of the year 9999 or later'
        when ordered and subject = '' then 'ordered without a subject'
        when start_by <= greatest(run_at, now()) then 'start_by is not after run_at, or in the past'
        when chain is not null and json_typeof(chain) <> 'array' then 'chain is no array of steps'
        when on_failure is not null and json_typeof(on_failure) <> 'array' then 'on_failure is no array of steps'
    end;
    if wrong is null and coalesce(json_array_length(chain), 0) + coalesce(json_array_length(on_failure), 0) > 1000 then
        raise exception 'too large: more than 1000 steps, of the chain and on failure (kind %)', kind using errcode = 'TZ004';
    end if;
    if wrong is not null then
        raise exception 'invalid submission: % (kind %)', wrong, kind using errcode = 'TZ001';
    end if;
    for step, no in select s.step, s.no from json_array_elements(on_failure) with ordinality as s(step, no) loop
        planned := array_append(planned, trapeze.checked_step(format('step %s on failure', no), step, true));
    end loop;
    for step, no in select s.step, s.no from json_array_elements(chain) with ordinality as s(step, no) loop
        planned := array_append(planned, trapeze.checked_step(format('step %s of the chain', no), step, false));
    end loop;
    j.id := trapeze.single_job_id();
    j.kind := kind;
    j.args := args;
    j.lane := coalesce(nullif(lane, ''), (select k.lane from trapeze.lane_kinds k where k.kind = enqueue.kind), 'default');
    j.subject := subject;
    j.key := nullif(key, '');
    j.ordered := coalesce(ordered, false);
    j.submitter := submitter;
    j.max_attempts := max_attempts;
    j.unique_key := unique_key;
    j.traceparent := traceparent;
    j.planned := '[' || array_to_string(planned, ',') || ']';
    approval := coalesce(needs_approval, false) or coalesce((select n.requires_approval from trapeze.lane_rules(j.lane) n), false);
    holder := j.id;
    duplicate := false;
    replaced := false;

    if idempotency_key is not null then
        idempotency := idempotency_key;
        if submitter <> '' then
            idempotency := 'sha256:' || encode(sha256(convert_to(submitter, 'UTF8') || decode('00', 'hex') || convert_to(idempotency, 'UTF8')), 'hex');
        end if;
        select sha256(string_agg(convert_to(octet_length(p.part) || ':' || p.part, 'UTF8'), ''::bytea order by p.n)) into fingerprint
        from unnest(array[kind, subject, args::text, coalesce(j.planned::text, ''), coalesce(j.key, '')]) with ordinality as p(part, n);
        for try in 1 .. 100 loop
            insert into trapeze.submissions (key, job_id, fingerprint) values (e.idempotency, j.id, e.fingerprint) on conflict do nothing;
            if found then
                holder := j.id;
                exit;
            end if;
            select s.job_id, s.fingerprint into holder, held from trapeze.submissions s where s.key = e.idempotency;
            exit when found;
            if try = 100 then -- a snapshot from before the other submission
                raise exception 'the idempotency key is being used by another transaction' using errcode = 'serialization_failure';
            end if;
        end loop;
        if holder <> j.id and held <> fingerprint then
            raise exception 'idempotency key was used for a different submission (kind %)', kind using errcode = 'TZ003';
        end if;
    end if;
    if holder = j.id and unique_key is not null then
        for try in 1 .. 100 loop
            insert into trapeze.unique_keys (kind, key, job_id) values (enqueue.kind, enqueue.unique_key, j.id) on conflict do nothing;
            if found then
                holder := j.id;
                exit;
            end if;
            -- Locked, so that its job cannot be claimed before this transaction has committed the rows which that job is to see.
            select k.job_id into holder from trapeze.unique_keys k where k.kind = enqueue.kind and k.key = enqueue.unique_key for update;
            if found then
                update trapeze.unique_keys k set job_id = j.id, replaced = null where k.kind = enqueue.kind and k.key = enqueue.unique_key
                    and not exists (select from trapeze.live l where l.id = k.job_id) and not exists (select from trapeze.parked p where p.id = k.job_id);
                if found then
                    holder := j.id;
                    exit;
                elsif replace then
                    select x.ended, x.replaced, x.awaiting, x.refused into ended, replaced, awaiting, refused
                    from trapeze.replace_job(holder, kind, unique_key, submitter, subject, j.key, args, j.planned, traceparent, pipeline,
                        nullif(needs_approval, false), debounce, debounce_max, coalesce(nullif(submitter, ''), 'system')) x;
                    if refused = 'submitter' then
                        raise exception 'another job holds its unique key: replace the args of another submitter''s job (kind %)', kind using errcode = 'TZ006';
                    elsif refused is not null then
                        raise exception 'invalid submission: replace job %: it has other %; submit with the same (kind %)', holder, refused, kind using errcode = 'TZ001';
                    end if;
                end if;
                if not ended then
                    if e.idempotency is not null then
                        update trapeze.submissions s set job_id = holder where s.key = e.idempotency;
                    end if;
                    exit;
                end if;
            end if;
            if try = 100 then
                raise exception 'the unique key is being used by another transaction' using errcode = 'serialization_failure';
            end if;
        end loop;
    end if;

    if holder = j.id and throttle is not null then
        run_at := now() + trapeze.throttle_delay(kind, unique_key, throttle);
        j.throttled_at := clock_timestamp();
    elsif debounce is not null then
        run_at := now() + debounce;
    end if;

    id := holder;
    if holder <> j.id then
        if replaced and not awaiting then -- claims have skipped the job meanwhile
            perform pg_notify('trapeze' || '_wake', '');
        end if;
        duplicate := true;
        select o.pipeline_id, o.state into pipeline_id, state from trapeze.job o where o.id = holder;
        pipeline_id := coalesce(pipeline_id, holder); -- it is not kept any more
        return;
    end if;
    start_by := least(start_by, greatest(run_at, now(), now() + debounce_max)
        + (select w * interval '1 millisecond' from trapeze.start_within(kind, j.lane) w));
    pipeline_id := j.id;
    state := case when approval then 'awaiting_approval' else 'pending' end;
    perform trapeze.insert_job(j, priority, greatest(run_at, now()), approval, case when unique_key is not null then unique_while end,
        coalesce(nullif(submitter, ''), 'system'), case when exists (select from json_array_elements(chain) c where coalesce(c ->> 'when', '') = '') then coalesce(pipeline, '') else nullif(pipeline, '') end, start_by);
end $$;
-- +goose StatementEnd
revoke execute on function trapeze.check_nesting(text, json), trapeze.checked_step(text, json, boolean),
    trapeze.check_job(text, text, json, text, text, integer),
    trapeze.enqueue(text, json, text, text, integer, timestamptz, text, text, text, integer, json, json, text, text, boolean, text, text, boolean, timestamptz, boolean, interval, interval, interval) from public;

-- +goose Down
drop function trapeze.enqueue(text, json, text, text, integer, timestamptz, text, text, text, integer, json, json, text, text, boolean, text, text, boolean, timestamptz, boolean, interval, interval, interval),
    trapeze.replace_job(bigint, text, text, text, text, text, json, json, text, text, boolean, interval, interval, text),
    trapeze.throttle_delay(text, text, interval), trapeze.checked_step(text, json, boolean), trapeze.check_job(text, text, json, text, text, integer), trapeze.check_nesting(text, json);
