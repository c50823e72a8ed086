-- Lanes whose jobs must be approved by another person than their submitter. Locks: ACCESS EXCLUSIVE on lanes for a moment; no row is
-- rewritten.

-- +goose Up
alter table trapeze.lanes add column four_eyes boolean not null default false;

-- +goose Down
alter table trapeze.lanes drop column four_eyes;
