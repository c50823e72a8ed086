-- The latest failed jobs, for the groups of failures. Locks: SHARE on done_failed and its days while the index is built, which holds up jobs
-- that fail for about a second a million failed jobs.

-- +goose Up
-- done_failed_by_end answers: which jobs failed last?
create index done_failed_by_end on trapeze.done_failed (finished_at, id);

-- +goose Down
drop index trapeze.done_failed_by_end;
