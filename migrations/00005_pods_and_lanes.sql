-- Who runs jobs, where they queue, and the global pause. Locks: new tables only.

-- +goose Up

-- One row a running process. The lease belongs to the pod, not to the job. A closed row never opens again: a pod that
-- finds its own row closed registers anew under a fresh boot id.
create table trapeze.pods (
    boot        uuid primary key,
    name        text not null,
    version     text not null default '',
    kinds       text[] not null default '{}',
    slots       integer not null default 0,
    started_at  timestamptz not null default now(),
    lease_until timestamptz not null,
    draining    boolean not null default false,
    closed_at   timestamptz,
    closed      text check (closed in ('left', 'lapsed')),
    swept_at    timestamptz                -- when its jobs were last looked for after it closed
) with (fillfactor = 50);
create index pods_open on trapeze.pods (lease_until) where closed_at is null;
create index pods_closed on trapeze.pods (closed_at) where closed_at is not null;
-- pods_to_sweep answers: whose jobs are still to be looked for?
create index pods_to_sweep on trapeze.pods (boot)
    where closed_at is not null and (swept_at is null or swept_at - closed_at < interval '10 minutes');

create table trapeze.lanes (
    name          text primary key check (octet_length(name) between 1 and 100),
    slots_per_pod integer check (slots_per_pod >= 0),  -- null: as many as the pod has
    enabled       boolean not null default true,
    drained       boolean not null default false
);
insert into trapeze.lanes (name) values ('default');

-- A kind's one default lane; a kind without a row goes to the lane named default.
create table trapeze.lane_kinds (
    kind text primary key,
    lane text not null references trapeze.lanes (name)
);

-- The global pause: one row.
create table trapeze.gate (
    one    boolean primary key default true check (one),
    paused boolean not null default false
);
insert into trapeze.gate default values;

-- +goose Down
drop table trapeze.gate;
drop table trapeze.lane_kinds;
drop table trapeze.lanes;
drop table trapeze.pods;
