-- What is due is found by an index, however many schedules there are. Lock: schedules, while the index is built of its rows.

-- +goose Up
-- schedules_due answers: which schedules are to be decided first? Those that nobody has planned yet come before all others.
create index schedules_due on trapeze.schedules ((case when planned then next_at else '-infinity' end), name) where not paused and not removed;

-- +goose Down
drop index trapeze.schedules_due;
