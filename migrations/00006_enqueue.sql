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

-- Submits a job in the caller's transaction: it exists if and only if that commits, and the commit wakes the listening pods. The job is
-- submitted by session_user; a role that may insert into trapeze.jobs may name another submitter. The answer is the job, or that of an earlier
-- submission with the same key, and where that is now.
-- +goose StatementBegin
create function trapeze.enqueue(
        kind text, args json default '{}', lane text default null, subject text default '', priority integer default 10,
        run_at timestamptz default null, idempotency_key text default null, unique_key text default null, unique_while text default 'active',
        max_attempts integer default null, chain json default null, on_failure json default null, submitter text default null,
        pipeline text default null, needs_approval boolean default false, traceparent text default null, key text default null,
        ordered boolean default false, start_by timestamptz default null,
        out id bigint, out pipeline_id bigint, out state text, out duplicate boolean)
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
begin
    args := coalesce(args, '{}');
    subject := coalesce(subject, '');
    priority := coalesce(priority, 10);
    submitter := coalesce(submitter, session_user);
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

    if idempotency_key is not null then
        idempotency := idempotency_key;
        if submitter <> '' then
            idempotency := 'sha256:' || encode(sha256(convert_to(submitter, 'UTF8') || decode('00', 'hex') || convert_to(idempotency, 'UTF8')), 'hex');
        end if;
        select sha256(string_agg(convert_to(octet_length(p.part) || ':' || p.part, 'UTF8'), ''::bytea order by p.n)) into fingerprint
        from unnest(array[kind, subject, args::text, coalesce(j.planned::text, '')]) with ordinality as p(part, n);
        for try in 1 .. 100 loop
            insert into trapeze.submissions (key, job_id, fingerprint) values (e.idempotency, j.id, e.fingerprint) on conflict do nothing;
            exit when found;
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
            exit when found;
            -- Locked, so that its job cannot be claimed before this transaction has committed the rows which that job is to see.
            select k.job_id into holder from trapeze.unique_keys k where k.kind = enqueue.kind and k.key = enqueue.unique_key for update;
            if found then
                update trapeze.unique_keys k set job_id = j.id, replaced = null where k.kind = enqueue.kind and k.key = enqueue.unique_key
                    and not exists (select from trapeze.live l where l.id = k.job_id) and not exists (select from trapeze.parked p where p.id = k.job_id);
                if found then
                    holder := j.id;
                elsif e.idempotency is not null then
                    update trapeze.submissions s set job_id = holder where s.key = e.idempotency;
                end if;
                exit;
            end if;
            if try = 100 then
                raise exception 'the unique key is being used by another transaction' using errcode = 'serialization_failure';
            end if;
        end loop;
    end if;

    id := holder;
    if holder <> j.id then
        duplicate := true;
        select o.pipeline_id, o.state into pipeline_id, state from trapeze.job o where o.id = holder;
        pipeline_id := coalesce(pipeline_id, holder); -- it is not kept any more
        return;
    end if;
    pipeline_id := j.id;
    state := case when approval then 'awaiting_approval' else 'pending' end;
    perform trapeze.insert_job(j, priority, greatest(run_at, now()), approval, case when unique_key is not null then unique_while end,
        coalesce(nullif(submitter, ''), 'system'), case when exists (select from json_array_elements(chain) c where coalesce(c ->> 'when', '') = '') then coalesce(pipeline, '') else nullif(pipeline, '') end, start_by);
end $$;
-- +goose StatementEnd
revoke execute on function trapeze.check_nesting(text, json), trapeze.checked_step(text, json, boolean),
    trapeze.check_job(text, text, json, text, text, integer),
    trapeze.enqueue(text, json, text, text, integer, timestamptz, text, text, text, integer, json, json, text, text, boolean, text, text, boolean, timestamptz) from public;

-- +goose Down
drop function trapeze.enqueue(text, json, text, text, integer, timestamptz, text, text, text, integer, json, json, text, text, boolean, text, text, boolean, timestamptz),
    trapeze.checked_step(text, json, boolean), trapeze.check_job(text, text, json, text, text, integer), trapeze.check_nesting(text, json);
