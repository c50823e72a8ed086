-- A pod reports how many claims its process knows, so that doctor finds jobs that run on a pod which does not know them. Lock: pods, for an
-- instant; no row is rewritten.

-- +goose Up
alter table trapeze.pods
    add column known_claims int; -- that its process has worked on for 20 s or longer; null: not reported

-- +goose Down
alter table trapeze.pods drop column known_claims;
