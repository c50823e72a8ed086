-- When a schedule fires next is a moment that every program can read and write: what is none, such as 'infinity', would cost the pods
-- their heartbeats, whose answer it is. Whoever wants a schedule not to fire pauses it. Lock: schedules, for a look at its rows, of
-- which there are few.

-- +goose Up
alter table trapeze.schedules
    add constraint schedules_next_at_check check (next_at >= '0001-01-02' and next_at < '9999-01-01'),
    add constraint schedules_anchor_check check (anchor >= '0001-01-02' and anchor < '9999-01-01');

-- +goose Down
alter table trapeze.schedules
    drop constraint schedules_next_at_check,
    drop constraint schedules_anchor_check;
