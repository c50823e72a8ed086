-- What operators steer and who they are: settings of lanes, the maintenance freeze, drained pods, the audit, roles and
-- grants. Locks: ACCESS EXCLUSIVE on lanes, gate and pods for a moment (no row is rewritten); otherwise new tables only.

-- +goose Up
alter table trapeze.lanes
    add column poll_interval_ms integer check (poll_interval_ms >= 100),  -- null: what the pods say
    add column stale_after_s    integer check (stale_after_s >= 0);       -- for kinds that say nothing; null: what the pods say; 0: no limit

alter table trapeze.gate add column frozen boolean not null default false;  -- for maintenance: closed like a pause, apart from it
alter table trapeze.pods add column drained boolean not null default false; -- by an operator: it starts nothing until it is resumed

-- What operators did, or were refused, oldest first; each row in the transaction of its change. It is only ever added to.
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
-- audit_of_target answers: who did what to this?
create index audit_of_target on trapeze.audit (target, id);

-- True while a subscription's worker applies rows of another database. Triggers are enabled ALWAYS, so that a session_replication_role of
-- replica does not disable them, and pass over such rows: their effects are replicated too.
-- +goose StatementBegin
create function trapeze.applies_subscription() returns boolean language plpgsql stable set search_path = pg_catalog, pg_temp as $$
begin
    return current_setting('session_replication_role') = 'replica'
        and exists (select from pg_stat_get_subscription(null) s where s.pid = pg_backend_pid());
end $$;
-- +goose StatementEnd

-- +goose StatementBegin
create function trapeze.audit_is_only_added_to() returns trigger language plpgsql set search_path = pg_catalog, pg_temp as $$
begin
    raise exception 'the audit is only added to' using errcode = 'insufficient_privilege';
end $$;
-- +goose StatementEnd
create trigger audit_is_only_added_to before update or delete or truncate on trapeze.audit
    for each statement when (not trapeze.applies_subscription()) execute function trapeze.audit_is_only_added_to();
alter table trapeze.audit enable always trigger audit_is_only_added_to;

-- Roles of one's own; those that come with the program are in the program. scope: whose jobs the permissions are for.
create table trapeze.roles (
    name        text primary key check (name ~ '^[a-z][a-z0-9_]{0,47}$'),
    permissions text[] not null default '{}',
    scope       text not null default 'own' check (scope in ('own', 'all'))
);

-- Who has which role, beside what his token says.
create table trapeze.grants (
    principal text not null check (octet_length(principal) between 1 and 200),
    role      text not null,                      -- one that comes with the program, or one of roles
    primary key (principal, role)
);

-- +goose Down
drop table trapeze.grants;
drop table trapeze.roles;
drop table trapeze.audit;
drop function trapeze.audit_is_only_added_to();
drop function trapeze.applies_subscription();
alter table trapeze.pods drop column drained;
alter table trapeze.gate drop column frozen;
alter table trapeze.lanes drop column poll_interval_ms, drop column stale_after_s;
