-- Slots of a lane over all pods together. Locks: access exclusive on lanes for a moment (no row is rewritten), and a new
-- table.

-- +goose Up
alter table trapeze.lanes
    add column slots integer check (slots >= 0),          -- of all pods together; null: no limit
    add column granted integer not null default 0;        -- the sum of slot_grants, under this row's lock

-- What each pod may run of a limited lane. A pod asks for slots and gives them back; those of a pod that was closed are
-- deleted when its jobs have been recovered.
create table trapeze.slot_grants (
    lane        text not null references trapeze.lanes (name) on delete cascade,
    boot        uuid not null,
    slots       integer not null check (slots >= 0),
    was         integer not null default 0,               -- before the latest change, so that the sum can follow it
    asked       bigint not null default 0,                -- the number of the question that was answered last
    wants_since timestamptz,                              -- it waits for its share; null: it has it, or needs none
    primary key (lane, boot)
) with (fillfactor = 50);
create index slot_grants_of_pod on trapeze.slot_grants (boot);

-- +goose Down
drop table trapeze.slot_grants;
alter table trapeze.lanes drop column slots, drop column granted;
