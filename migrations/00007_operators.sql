-- Operators: the audit of their actions, their requests to pods, and their roles.

-- +goose Up

-- Each row is written in the transaction of its change. The table is only ever added to.
create table trapeze.audit (
    id         bigint generated always as identity primary key,
    at         timestamptz not null default clock_timestamp(),
    actor      text not null,
    source     text not null default '',          -- cli, library, or the address that the request came from
    request_id text not null default '',
    action     text not null,                     -- job.cancel, lane.set, ...
    target     text not null,                     -- what it was done to: job 7, lane default
    allowed    boolean not null default true,     -- false: refused, nothing was changed
    reason     text not null default '',          -- the operator's own words, or why it was refused
    before     json,
    after      json
);
comment on table trapeze.audit is 'One row per action that an operator took, or was refused, oldest first.';
create index audit_of_target on trapeze.audit (target, id);
comment on index trapeze.audit_of_target is 'Who did what to this?';

-- +goose StatementBegin
create function trapeze.audit_is_only_added_to() returns trigger language plpgsql set search_path = pg_catalog, pg_temp as $$
begin
    raise exception 'the audit is only added to' using errcode = 'insufficient_privilege';
end $$;
-- +goose StatementEnd
create trigger audit_is_only_added_to before delete or truncate on trapeze.audit
    for each statement when (not trapeze.applies_subscription()) execute function trapeze.audit_is_only_added_to();
alter table trapeze.audit enable always trigger audit_is_only_added_to;
-- An update may replace before, after and reason by a mark that they were erased, and nothing else.
create trigger audit_is_only_erased before update on trapeze.audit for each row
    when (not trapeze.applies_subscription() and ((new.id, new.at, new.actor, new.source, new.request_id, new.action, new.target, new.allowed)
        is distinct from (old.id, old.at, old.actor, old.source, old.request_id, old.action, old.target, old.allowed)
        or new.reason <> old.reason and new.reason <> 'erased'
        or new.before::text is distinct from old.before::text and new.before::text is distinct from '{"erased":true}'
        or new.after::text is distinct from old.after::text and new.after::text is distinct from '{"erased":true}'))
    execute function trapeze.audit_is_only_added_to();
alter table trapeze.audit enable always trigger audit_is_only_erased;

create table trapeze.claim_requests (
    id          bigint generated always as identity primary key,
    pod         uuid not null,             -- the claim: its pod, its job and its fence
    job_id      bigint not null,
    fence       bigint not null,
    what        text not null check (what in ('stack', 'priority')),
    priority    smallint check (priority between -100 and 100),
    answered_at timestamptz,               -- null: the pod has not read it
    answer      text,
    created_at  timestamptz not null default now()
);
comment on table trapeze.claim_requests is
    'One row per request of an operator to the pod that runs a claim: the stack of its handler, or another priority for the next steps.';
create index claim_requests_open on trapeze.claim_requests (pod) where answered_at is null;
comment on index trapeze.claim_requests_open is 'What is this pod asked to do? It is nearly always empty.';

-- The maxima are the highest values that a role's holders may submit; null: no cap.
create table trapeze.roles (
    name         text primary key check (name ~ '^[a-z][a-z0-9_]{0,47}$'),
    permissions  text[] not null default '{}',
    scope        text not null default 'own' check (scope in ('own', 'all')), -- whose jobs the permissions are for
    max_priority integer,
    max_delay_ms bigint check (max_delay_ms >= 0),
    max_attempts integer check (max_attempts >= 1)
);
comment on table trapeze.roles is 'One row per role that operators defined; the program defines further roles.';

create table trapeze.grants (
    principal text not null check (octet_length(principal) between 1 and 200),
    role      text not null,                      -- one that comes with the program, or one of roles
    primary key (principal, role)
);
comment on table trapeze.grants is 'One row per role that a principal has besides those in its token.';

-- +goose Down
drop table trapeze.grants, trapeze.roles, trapeze.claim_requests, trapeze.audit;
drop function trapeze.audit_is_only_added_to();
