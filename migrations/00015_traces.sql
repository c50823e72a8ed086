-- The trace in which a job was submitted, for its runs to be part of it or to point to it. Locks: ACCESS EXCLUSIVE on jobs for
-- an instant; no row is written.

-- +goose Up

-- As the W3C's header of that name; null: nobody traced. Its length is that of version 00.
alter table trapeze.jobs add column traceparent text check (octet_length(traceparent) <= 55);

-- +goose Down
alter table trapeze.jobs drop column traceparent;
