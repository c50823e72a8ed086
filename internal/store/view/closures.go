package view

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/trapeze-run/trapeze/internal/store"
	"github.com/trapeze-run/trapeze/job"
)

// closuresSQL reads from the audit log when, by whom and why each target was closed. It finds nothing if an operator opened the target and
// it was then closed through SQL. Plan: audit_of_target backwards for each target, stops at its latest entry of these actions.
const closuresSQL = `
select w.target, a.action, a.at, a.actor, a.reason from unnest($1::text[], $2::text[], $3::text[]) as w(target, closes, opens)
cross join lateral (
	select a.action, a.at, a.actor, a.reason from trapeze.audit a
	where a.target = w.target and a.allowed and a.action in (w.closes, w.opens) order by a.id desc limit 1
) a
where a.action = w.closes`

type closure struct {
	Target, Action string
	job.Closure
}

// closuresOf returns a function that runs a query for closures.
func closuresOf(ctx context.Context, s *store.Store) func(string, ...any) ([]closure, error) {
	return func(sql string, args ...any) ([]closure, error) {
		return store.Rows(ctx, s, pgx.RowToStructByPos[closure], sql, args...)
	}
}

// addClosures fills in who closed the queue, each drained lane and each drained pod, and why. It reads nothing if everything is open. A
// drain applies to a pod's name, so pods with the same name share a closure.
func addClosures(queue *job.QueueState, lanes []job.LaneUse, pods []job.Pod, read func(sql string, args ...any) ([]closure, error)) error {
	var targets, closes, opens []string
	to := map[[2]string][]**job.Closure{}
	want := func(closed bool, target, close, open string, at **job.Closure) {
		key := [2]string{target, close}
		if closed && to[key] == nil {
			targets, closes, opens = append(targets, target), append(closes, close), append(opens, open)
		}
		if closed {
			to[key] = append(to[key], at)
		}
	}
	if queue != nil {
		want(queue.Paused, "queue_state", "queue_state.pause", "queue_state.unpause", &queue.Pause)
		want(queue.Frozen, "queue_state", "queue_state.freeze", "queue_state.thaw", &queue.Freeze)
	}
	for i := range lanes {
		want(lanes[i].Drained, "lane "+lanes[i].Name, "lane.drain", "lane.resume", &lanes[i].Drain)
	}
	for i := range pods {
		want(pods[i].Drained, "pod "+pods[i].Name, "pod.drain", "pod.resume", &pods[i].Drain)
	}
	if len(targets) == 0 {
		return nil
	}
	found, err := read(closuresSQL, targets, closes, opens)
	if err != nil {
		return fmt.Errorf("read why they are closed: %w", err)
	}
	for _, c := range found {
		for _, at := range to[[2]string{c.Target, c.Action}] {
			*at = &c.Closure
		}
	}
	return nil
}
