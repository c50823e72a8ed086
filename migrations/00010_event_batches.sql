-- One row of the history for all jobs that one statement enqueued, claimed or ended alike: these events say what columns
-- of the job's row say, and a row each cost more than the transition itself. Whose event it is stands in arrays, and the
-- job's row, or the event that ended a claim, names the transaction (xid, claim_xid) in which to look. Rows of before stay
-- as they are. Pods of builds without this migration are to be stopped first: they do not know shared rows. Locks: ACCESS
-- EXCLUSIVE on jobs, live, done and job_events (no row is rewritten).

-- +goose Up
alter table trapeze.jobs add column xid xid8;                 -- of the transaction that submitted it
alter table trapeze.live add column claim_xid xid8;           -- of the latest claim
alter table trapeze.done
    add column xid xid8,                                      -- of the end
    add column claim_xid xid8;
alter table trapeze.job_events
    add column jobs bigint[],                                 -- whose event it is, where job is null
    add column event_nos integer[],
    add column fences bigint[],
    add column claim_xid xid8;                                -- of the claim that this event ended
-- A claim makes a row longer by what it sets: with this much room left on its page it stays a HOT update.
alter table trapeze.live set (fillfactor = 42);

-- Every event as one row of one job, or of none. It has no index on the job of a shared row: the history of one job, as
-- "trapeze events" reads it, follows the transactions that its rows name.
create view trapeze.job_event as
select coalesce(e.job, b.job) as job, coalesce(e.event_no, b.event_no) as event_no, e.xid, e.at,
       coalesce(e.fence, b.fence) as fence, e.boot, e.from_state, e.to_state, e.event, e.actor, e.level, e.message, e.fields
from trapeze.job_events e
left join lateral unnest(e.jobs, e.event_nos, e.fences) as b(job, event_no, fence) on true;

-- +goose Down
insert into trapeze.job_events (job, event_no, xid, at, fence, boot, from_state, to_state, event, actor, level, message, fields)
select b.job, b.event_no, e.xid, e.at, b.fence, e.boot, e.from_state, e.to_state, e.event, e.actor, e.level, e.message, e.fields
from trapeze.job_events e cross join lateral unnest(e.jobs, e.event_nos, e.fences) as b(job, event_no, fence);
delete from trapeze.job_events where jobs is not null;
drop view trapeze.job_event;
alter table trapeze.live set (fillfactor = 50);
alter table trapeze.job_events drop column claim_xid, drop column fences, drop column event_nos, drop column jobs;
alter table trapeze.done drop column claim_xid, drop column xid;
alter table trapeze.live drop column claim_xid;
alter table trapeze.jobs drop column xid;
