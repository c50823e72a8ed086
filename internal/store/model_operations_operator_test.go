package store_test

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/trapeze-run/trapeze/internal/store"
	"github.com/trapeze-run/trapeze/internal/store/admin"
	"github.com/trapeze-run/trapeze/internal/store/upkeep"
	"github.com/trapeze-run/trapeze/job"
)

// oldDay is the age in days of the jobs that retention deletes. It exceeds two because a day ends at midnight.
const oldDay = 3

// retention is the time for which finished jobs are kept.
const retention = 30 * time.Hour

func cancels(id int64, stop bool) operation {
	return in(fmt.Sprintf("cancel %d, stop %v", id, stop),
		func(ctx context.Context, s *store.Store) (admin.Cancellation, error) {
			c, err := admin.Cancel(ctx, s, id, 0, stop, "ann", ignoreLease)
			return c, err
		},
		func(m *model) (admin.Cancellation, error) { return m.Cancel(id, stop, "ann") })
}

func nices(id int64, priority int) operation {
	var keys []store.Line
	var refused error
	return operation{fmt.Sprintf("nice %d, %d", id, priority),
		func(ctx context.Context, s *store.Store) (any, error) {
			return nil, admin.SetPriority(ctx, s, id, priority, false, "ann")
		},
		[]func(*model) (any, error){
			func(m *model) (any, error) {
				if keys, refused = nil, m.Nice(id, priority, "ann"); refused == nil && m.jobs[id].Subject != "" {
					keys = []store.Line{m.jobs[id].key()}
				}
				return nil, nil
			},
			func(m *model) (any, error) { m.Yield(keys); return nil, nil },
			func(m *model) (any, error) { m.Admit(keys); return nil, refused },
		}}
}

func retriesAgain(id int64) operation {
	return in(fmt.Sprintf("operator's retry of %d", id),
		func(ctx context.Context, s *store.Store) ([]int64, error) { return admin.Retry(ctx, s, id, nil, "ann") },
		func(m *model) ([]int64, error) { return m.Retry(id, "ann") })
}

func registers(podID, name string) operation {
	p := store.PodInfo{PodID: podID, Name: name, Kinds: []string{"k"}, Slots: 8}
	return bare("register "+podID,
		func(ctx context.Context, s *store.Store) error { return s.Register(ctx, p, lease) },
		func(m *model) error { m.Register(p); return nil })
}

func leaves(podID string) operation {
	return bare("leave "+podID,
		func(ctx context.Context, s *store.Store) error { return s.Leave(ctx, podID) },
		func(m *model) error { m.Leave(podID); return nil })
}

func beats(podID string, draining bool) operation {
	return in("heartbeat of "+podID,
		func(ctx context.Context, s *store.Store) (modelBeat, error) {
			b, err := s.Heartbeat(ctx, podID, lease, draining)
			got := modelBeat{Open: b.Open, Paused: b.Paused, Due: b.NextDue != nil, Peers: b.NextLapse != nil}
			got.Lanes, got.Cancels = append(got.Lanes, b.Lanes...), append(got.Cancels, b.Cancels...)
			got.sort()
			return got, err
		},
		func(m *model) (modelBeat, error) { return m.Heartbeat(podID, draining), nil })
}

func closesLapsed(by string) operation {
	return in("close lapsed pods, by "+by,
		func(ctx context.Context, s *store.Store) (podIDs []string, err error) {
			list, err := store.CloseLapsed(ctx, s, by, lease, time.Time{})
			for _, l := range list {
				podIDs = append(podIDs, l.PodID)
			}
			return podIDs, err
		},
		func(m *model) ([]string, error) { return m.CloseLapsed(by), nil })
}

func recoversPage(podIDs []string, after int64, limit, maxCrashes int) operation {
	return in(fmt.Sprintf("recover jobs of %v after %d, %d rows, %d crashes", podIDs, after, limit, maxCrashes),
		func(ctx context.Context, s *store.Store) (store.RecoveredPage, error) {
			return store.RecoverPage(ctx, s, podIDs, after, limit, maxCrashes)
		},
		func(m *model) (store.RecoveredPage, error) {
			return m.RecoverPage(podIDs, after, limit, maxCrashes), nil
		})
}

// recovers closes lapsed pods and then recovers one pod's jobs.
func recovers(by, from string) operation {
	closing, page := closesLapsed(by), recoversPage([]string{from}, -1, 1000, 3)
	return operation{"recover",
		func(ctx context.Context, s *store.Store) (any, error) {
			if _, err := closing.do(ctx, s); err != nil {
				return nil, err
			}
			return page.do(ctx, s)
		},
		[]func(*model) (any, error){func(m *model) (any, error) { m.CloseLapsed(by); return nil, nil }, page.stages[0]}}
}

// sweepsDue lists the pods to be swept. The result must include every pod that has not been swept yet.
func sweepsDue(unswept []string) operation {
	return in("list the sweeps",
		func(ctx context.Context, s *store.Store) ([]string, error) {
			due, err := store.SweepsDue(ctx, s)
			return slices.DeleteFunc(due, func(podID string) bool { return !slices.Contains(unswept, podID) }), err
		},
		func(m *model) ([]string, error) { return append([]string{}, unswept...), nil })
}

func swept(podIDs []string) operation {
	return bare(fmt.Sprintf("note the sweep of %v", podIDs),
		func(ctx context.Context, s *store.Store) error { return store.Swept(ctx, s, podIDs) },
		func(m *model) error {
			for _, podID := range podIDs {
				m.pods[podID].swept = true
			}
			return nil
		})
}

func prunesPods() operation {
	return in("prune pods",
		func(ctx context.Context, s *store.Store) (int, error) { return upkeep.PrunePods(ctx, s, 0, 500) },
		func(m *model) (int, error) { return m.PrunePods(), nil })
}

func promotes(limit int) operation {
	return in(fmt.Sprintf("promote %d", limit),
		func(ctx context.Context, s *store.Store) (promoted, error) {
			pending, waiting, err := s.Promote(ctx, limit)
			sortKeys(waiting)
			return promoted{len(pending) + len(waiting), waiting}, err
		},
		func(m *model) (promoted, error) { return m.Promote(limit), nil })
}

// promoted is the result of a promotion: the number of jobs, and the subjects of those that now wait for their subject.
type promoted struct {
	N       int
	Waiting []store.Line
}

func sortKeys(keys []store.Line) {
	slices.SortFunc(keys, func(a, b store.Line) int {
		return cmp.Or(cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.Subject, b.Subject))
	})
}

// changesLane changes a lane as an operator would. Heartbeats report the change.
func changesLane(l store.Lane) operation {
	return bare(fmt.Sprintf("lane %s", asLine(l)),
		func(ctx context.Context, s *store.Store) error {
			_, err := s.Pool().Exec(ctx, `update trapeze.lanes set slots_per_pod = $2, enabled = $3, drained = $4 where name = $1`,
				l.Name, l.SlotsPerPod, l.Enabled, l.Drained)
			return err
		},
		func(m *model) error { m.lanes[l.Name] = l; return nil })
}

func pauses(paused bool) operation {
	return bare(fmt.Sprintf("queue paused %v", paused),
		func(ctx context.Context, s *store.Store) error {
			_, err := s.Pool().Exec(ctx, `update trapeze.queue_state set paused = $1`, paused)
			return err
		},
		func(m *model) error { m.paused = paused; return nil })
}

// forgets applies retention to the jobs that ended in the given state. The number of deleted jobs is not part of the result, because two
// concurrent operations may both count the same jobs.
func forgets(state job.State) operation {
	drops := false
	return operation{"forget " + string(state),
		func(ctx context.Context, s *store.Store) (any, error) {
			_, err := upkeep.Forget(ctx, s, string(state), retention, unpaced)
			return nil, err
		},
		[]func(*model) (any, error){
			func(m *model) (any, error) { _, drops = m.Forget(state); return nil, nil },
			func(m *model) (any, error) {
				if drops {
					m.dropDay(state)
				}
				return nil, nil
			},
		}}
}

func forgetsEvents() operation {
	return bare("forget events",
		func(ctx context.Context, s *store.Store) error {
			_, err := upkeep.ForgetEvents(ctx, s, retention, unpaced)
			return err
		},
		func(m *model) error { m.ForgetEvents(); return nil })
}

// lapses moves a pod's lease expiry into the past.
func lapses(podID string) operation {
	return bare("lapse of "+podID,
		func(ctx context.Context, s *store.Store) error {
			_, err := s.Pool().Exec(ctx, `update trapeze.pods set lease_until = now() - interval '1 second' where id = $1`, podID)
			return err
		},
		func(m *model) error { m.pods[podID].lapsed = true; return nil })
}

// comesDue makes a parked job due.
func comesDue(id int64) operation {
	return bare(fmt.Sprintf("job %d comes due", id),
		func(ctx context.Context, s *store.Store) error {
			_, err := s.Pool().Exec(ctx, `update trapeze.parked set run_after = now() where id = $1`, id)
			return err
		},
		func(m *model) error { m.jobs[id].at = m.now; return nil })
}

// waitsForSubject makes a parked job wait for its subject, as if nobody had admitted it yet.
func waitsForSubject(id int64) operation {
	return bare(fmt.Sprintf("job %d waits for its subject", id),
		func(ctx context.Context, s *store.Store) error {
			_, err := s.Pool().Exec(ctx, `update trapeze.parked set why = 'subject' where id = $1`, id)
			return err
		},
		func(m *model) error { m.jobs[id].why = "subject"; return nil })
}

// ages moves finished jobs and their history to a past day.
func ages(ids ...int64) operation {
	return bare(fmt.Sprintf("age %v", ids),
		func(ctx context.Context, s *store.Store) error {
			if err := makeOldDay(ctx, s); err != nil {
				return err
			}
			at := time.Now().UTC().AddDate(0, 0, -oldDay)
			_, err := s.Pool().Exec(ctx, `update trapeze.done set finished_at = $2 where id = any($1)`, ids, at)
			if err == nil {
				err = ageEvents(ctx, s.Pool(), ids, at)
			}
			return err
		},
		func(m *model) error {
			for _, id := range ids {
				m.jobs[id].old = true
				for i := range m.events {
					m.events[i].old = m.events[i].old || m.events[i].job == id
				}
			}
			return nil
		})
}

// ageEvents changes the times of jobs' events. If a row contains events of several jobs, ageEvents first moves the affected events to
// separate rows.
func ageEvents(ctx context.Context, pool *pgxpool.Pool, ids []int64, at time.Time) error {
	return pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
		for _, sql := range []string{
			`insert into trapeze.job_events (job, event_no, xid, fence, pod, from_state, to_state, event, actor, level, message, fields)
			select job, event_no, xid, fence, pod, from_state, to_state, event, actor, level, message, fields from trapeze.job_event
			where job = any($1) and not exists (select from trapeze.job_events e where e.job = job_event.job and e.event_no = job_event.event_no)`,
			`delete from trapeze.job_events where jobs <@ $1`,
			`update trapeze.job_events e set (jobs, event_nos, fences) = (select array_agg(job), array_agg(event_no), array_agg(fence)
			from unnest(e.jobs, e.event_nos, e.fences) b(job, event_no, fence) where job <> all($1)) where jobs && $1`,
		} {
			if _, err := tx.Exec(ctx, sql, ids); err != nil {
				return err
			}
		}
		_, err := tx.Exec(ctx, `update trapeze.job_events set at = $2 where job = any($1)`, ids, at)
		return err
	})
}

// makeOldDay creates the missing partitions for the past day.
func makeOldDay(ctx context.Context, s *store.Store) error {
	day := time.Now().UTC().AddDate(0, 0, -oldDay)
	for _, parent := range []string{"done_succeeded", "done_failed", "done_cancelled", "job_events"} {
		_, err := s.Pool().Exec(ctx, fmt.Sprintf(`do $$ begin
			if to_regclass('trapeze.%[1]s_%[2]s') is null then
				create table trapeze.%[1]s_%[2]s (like trapeze.%[1]s including all);
				alter table trapeze.%[1]s attach partition trapeze.%[1]s_%[2]s for values from ('%[3]s 00:00:00+00') to ('%[4]s 00:00:00+00');
			end if; end $$`, parent, day.Format("20060102"), day.Format(time.DateOnly), day.AddDate(0, 0, 1).Format(time.DateOnly)))
		if err != nil {
			return fmt.Errorf("make the old day of %s: %w", parent, err)
		}
	}
	return nil
}
