-- The latest failed jobs, for the groups of failures, and the limits of kinds. Locks: SHARE on done_failed and its days while the index is
-- built, which holds up jobs that fail for about a second a million failed jobs; ACCESS EXCLUSIVE on pods for an instant.

-- +goose Up
-- done_failed_by_end answers: which jobs failed last?
create index done_failed_by_end on trapeze.done_failed (finished_at, id);

alter table trapeze.pods
    add column limits jsonb; -- timeout, attempts and so on of each kind that the pod handles; null: not reported

-- +goose Down
alter table trapeze.pods drop column limits;
drop index trapeze.done_failed_by_end;
