-- Lock: ACCESS EXCLUSIVE on schedules, for an instant; no row is read or rewritten.
-- Jobs of schedules have the default priority of all jobs. Rows keep theirs: 0 may have been set on purpose, and nothing in a row tells
-- that from the old default; the order of the jobs of a running fleet is not a migration's to change. A schedule that the program declares
-- gets the new default when a pod of this version declares it, unless an operator or the program set another priority. For the
-- others: update trapeze.schedules set priority = 10 where priority = 0 and declared is null.

-- +goose Up
alter table trapeze.schedules alter column priority set default 10;

-- +goose Down
alter table trapeze.schedules alter column priority set default 0;
