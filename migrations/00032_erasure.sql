-- The erasure of a subject's data. Locks: ACCESS EXCLUSIVE on jobs and on audit for an instant; no row is rewritten.

-- +goose Up
alter table trapeze.jobs
    add column erased_at timestamptz; -- when the job's data was erased; null: never

-- An update of the audit may replace before, after and reason by a mark that they were erased, and nothing else.
drop trigger audit_is_only_added_to on trapeze.audit;
create trigger audit_is_only_added_to before delete or truncate on trapeze.audit
    for each statement when (not trapeze.applies_subscription()) execute function trapeze.audit_is_only_added_to();
alter table trapeze.audit enable always trigger audit_is_only_added_to;
create trigger audit_is_only_erased before update on trapeze.audit for each row
    when (not trapeze.applies_subscription() and ((new.id, new.at, new.actor, new.source, new.request_id, new.action, new.target, new.allowed)
        is distinct from (old.id, old.at, old.actor, old.source, old.request_id, old.action, old.target, old.allowed)
        or new.reason <> old.reason and new.reason <> 'erased'
        or new.before::text is distinct from old.before::text and new.before::text is distinct from '{"erased":true}'
        or new.after::text is distinct from old.after::text and new.after::text is distinct from '{"erased":true}'))
    execute function trapeze.audit_is_only_added_to();
alter table trapeze.audit enable always trigger audit_is_only_erased;

-- +goose Down
drop trigger audit_is_only_erased on trapeze.audit;
drop trigger audit_is_only_added_to on trapeze.audit;
create trigger audit_is_only_added_to before update or delete or truncate on trapeze.audit
    for each statement when (not trapeze.applies_subscription()) execute function trapeze.audit_is_only_added_to();
alter table trapeze.audit enable always trigger audit_is_only_added_to;
alter table trapeze.jobs drop column erased_at;
