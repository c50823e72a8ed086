-- Workers that have no database are pods as well, whose lease the pod that serves their stream renews for them: this is what is kept of
-- them beside their rows of pods, which stay as narrow as they are. Locks: a new table only.

-- +goose Up
create table trapeze.remote_workers (
    boot       uuid primary key references trapeze.pods (boot) on delete cascade,
    owner      text not null,              -- who may speak for it: a principal
    stream     bigint not null default 1,  -- rises with every stream: whoever serves an older one is superseded
    stream_key bytea not null,             -- assignments are signed with it
    policies   jsonb not null default '[]' -- its kinds with what holds for them: for a pod that settles a job without its stream
);

-- +goose Down
drop table trapeze.remote_workers;
