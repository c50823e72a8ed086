-- Who may see only jobs of his own asks for them by his name. Locks: SHARE on jobs while the index is built, which holds up
-- submissions for about a second a million jobs.

-- +goose Up
-- jobs_by_submitter answers: which jobs of this submitter are the newest? What the program itself submits costs it nothing.
create index jobs_by_submitter on trapeze.jobs (submitter, created_at, id) where submitter <> '';

-- +goose Down
drop index trapeze.jobs_by_submitter;
