-- A table that was empty when it was last analyzed, and whose file was not, counts as empty for the planner however full it is now: it then
-- reads all of an index for each row. Whoever notices that a statement is slow has such tables analyzed, with the owner's right, which
-- the role of a pod may lack. Lock: SHARE UPDATE EXCLUSIVE on a table of a moment ago, for milliseconds; a locked one is passed by.

-- +goose Up
-- +goose StatementBegin
create function trapeze.analyze_emptied() returns integer
    language plpgsql security definer set search_path = pg_catalog, trapeze, pg_temp as $$
declare
    name     text;
    analyzed integer := 0;
begin
    for name in
        select c.relname from pg_class c join pg_namespace n on n.oid = c.relnamespace
        where n.nspname = 'trapeze' and c.reltuples = 0 and c.relpages > 0 and pg_relation_size(c.oid) > 0
          and c.relname in ('live', 'parked', 'current_runs', 'job_progress', 'fan_outs', 'parts', 'deferrals', 'unique_keys',
                            'submissions', 'slot_grants', 'cancel_requests')
    loop
        execute format('analyze (skip_locked) trapeze.%I', name);
        analyzed := analyzed + 1;
    end loop;
    return analyzed;
end $$;
-- +goose StatementEnd
revoke execute on function trapeze.analyze_emptied() from public;

-- +goose Down
drop function trapeze.analyze_emptied();
