-- What tells this history from another one that began with the same rows: the ids of transactions, by which the feed goes on,
-- start anew where a dump is restored. A materialized view is not dumped but made again, so a restored database has another
-- value, while a copy of the files, as a standby or a base backup, keeps it. Any role that may read the tables may read it.
-- After a restore of the schema alone it is empty: refresh it once. Locks: none that anyone waits for.

-- +goose Up
create materialized view trapeze.feed_epoch as select gen_random_uuid() as id;

-- +goose Down
drop materialized view trapeze.feed_epoch;
