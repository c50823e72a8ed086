-- A heartbeat of a remote worker may reach another pod than the one that sent it a job: what it lists is kept here, for that one to learn
-- that its job has arrived. Lock: remote_workers, for an instant; no row is rewritten.

-- +goose Up
alter table trapeze.remote_workers
    add column acknowledged bigint[] not null default '{}'; -- claims that the latest of such heartbeats listed: a job's id, its fence, and so on

-- +goose Down
alter table trapeze.remote_workers drop column acknowledged;
