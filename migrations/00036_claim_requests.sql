-- What operators ask of the pod that runs a claim: the stack of its handler, or another priority for the next steps. Locks: a new table only.

-- +goose Up
create table trapeze.claim_requests (
    id          bigint generated always as identity primary key,
    pod         uuid not null,             -- the claim: its pod, its job and its fence
    job_id      bigint not null,
    fence       bigint not null,
    what        text not null check (what in ('stack', 'priority')),
    priority    smallint check (priority between -100 and 100),
    answered_at timestamptz,               -- null: the pod has not read it
    answer      text,
    created_at  timestamptz not null default now()
);
-- claim_requests_open answers: what is this pod asked to do? It is nearly always empty.
create index claim_requests_open on trapeze.claim_requests (pod) where answered_at is null;

-- +goose Down
drop table trapeze.claim_requests;
