package torture

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/trapeze-run/trapeze/tools/torture/history"
)

// databaseInjectors disturb the database from within, through its settings, locks and rows.
var databaseInjectors = append(serverInjectors,
	injector{name: "timeouts", fault: "F27", weight: .02, aim: atAll, few: 20, many: 200, shortest: 3 * time.Second, longest: 8 * time.Second, note: whichTimeout, do: timeouts},
	injector{name: "serializable", fault: "F28", weight: .02, aim: atAll, shortest: 3 * time.Second, longest: 8 * time.Second, do: settings("default_transaction_isolation", "serializable")},
	injector{name: "opposite_locks", fault: "F28", weight: .02, shortest: 2 * time.Second, longest: 10 * time.Second, do: oppositeLocks},
	injector{name: "read_only", fault: "F29", weight: .02, aim: atAll, shortest: 2 * time.Second, longest: 8 * time.Second, do: settings("default_transaction_read_only", "on")},
	injector{name: "failover", fault: "F29", weight: .03, aim: atAll, shortest: 500 * time.Millisecond, longest: 5 * time.Second, room: 20 * time.Second, do: failover},
	injector{name: "disk_full", fault: "F30", weight: .015, aim: atAll, shortest: 2 * time.Second, longest: 6 * time.Second, do: diskFull},
	injector{name: "stuck_listener", fault: "F33", weight: .01, shortest: 5 * time.Second, longest: 20 * time.Second, do: stuckListener},
	injector{name: "notify_storm", fault: "F34", weight: .02, shortest: time.Second, longest: 5 * time.Second, do: notifyStorm},
	injector{name: "long_transaction", fault: "F35", weight: .02, shortest: 10 * time.Second, longest: time.Minute, do: longTransaction},
	injector{name: "clock_forward", fault: "F36", weight: .01, aim: atAll, few: 1, many: 3, shortest: 2 * time.Second, longest: 5 * time.Second, do: clockJumps("- interval '1 hour'")},
	injector{name: "clock_back", fault: "F36", weight: .01, aim: atAll, few: 1, many: 3, shortest: 2 * time.Second, longest: 5 * time.Second, do: clockJumps("+ interval '1 hour'")},
	injector{name: "delete_row", fault: "F39", weight: .015, few: 1, many: 3, shortest: time.Second, longest: 2 * time.Second, do: deleteRow},
	injector{name: "lock_table", fault: "F39", weight: .015, aim: atAll, shortest: time.Second, longest: 6 * time.Second, do: lockTable},
)

// settings returns a function that changes a setting for every pod's role. Sessions read the setting when they start, so the function
// terminates all sessions when it sets the value and when it resets it.
func settings(name, value string) func(*injection) error {
	return func(s *injection) error {
		set := func(ctx context.Context, c *pgx.Conn, how string) error {
			for _, p := range s.w.Pods() {
				if _, err := c.Exec(ctx, fmt.Sprintf("alter role %s %s", p.Name(), how)); err != nil {
					return err
				}
			}
			return s.terminate(ctx, c)
		}
		// The context is never cancelled, because a cancelled statement may still take effect, even after the statement that undoes it.
		whole := context.WithoutCancel(s.ctx)
		err := s.admin(s.ctx, func(c *pgx.Conn) error { return set(whole, c, "set "+name+" = '"+value+"'") })
		if err == nil {
			s.waitPlanned()
		}
		healed := s.heal(func(ctx context.Context, c *pgx.Conn) error { return set(ctx, c, "reset "+name) })
		if err != nil {
			return s.unlessOver(err)
		}
		return healed
	}
}

func whichTimeout(r *rand.Rand, a *history.Act, _ int) {
	a.Note["setting"] = []string{"statement_timeout", "lock_timeout", "idle_in_transaction_session_timeout"}[r.IntN(3)]
}

func timeouts(s *injection) error {
	name, _ := s.act.Note["setting"].(string)
	return settings(name, fmt.Sprint(s.act.Number, "ms"))(s)
}

// oppositeLocks locks rows in the opposite order from all other code: subjects before jobs, and jobs from newest to oldest.
func oppositeLocks(s *injection) error {
	lock := func(c *pgx.Conn) error {
		return pgx.BeginFunc(s.ctx, c, func(tx pgx.Tx) error {
			for _, sql := range []string{
				`select job_id from trapeze.subjects where state = 'held' order by kind desc, subject desc limit 3 for update`,
				`select id from trapeze.live where state = 'running' order by id desc limit 3 for update`,
				`select id from trapeze.live where state = 'running' order by id limit 3 for update`,
			} {
				rows, err := tx.Query(s.ctx, sql)
				if err != nil {
					return err
				}
				ids, err := pgx.CollectRows(rows, pgx.RowTo[int64])
				if err != nil {
					return err
				}
				s.hit(len(ids))
				s.wait(50 * time.Millisecond)
			}
			return nil
		})
	}
	return s.admin(s.ctx, func(c *pgx.Conn) error {
		for end := time.Now().Add(s.act.For); time.Now().Before(end) && s.wait(50*time.Millisecond); {
			if err := lock(c); err != nil && c.IsClosed() {
				return s.unlessOver(err)
			} // otherwise, the injector itself was the victim of the deadlock
		}
		return nil
	})
}

// stuckListener listens in a transaction that stays open, so that PostgreSQL cannot discard notifications. Meanwhile, it sends
// notifications that no pod is waiting for, which pile up.
func stuckListener(s *injection) error {
	return s.admin(s.ctx, func(stuck *pgx.Conn) error {
		for _, sql := range []string{"listen trapeze_wake", "listen trapeze_noise", "begin", "select 1"} {
			if _, err := stuck.Exec(s.ctx, sql); err != nil {
				return s.unlessOver(err)
			}
		}
		return s.admin(s.ctx, func(c *pgx.Conn) error {
			const noise = `select pg_notify('trapeze_noise', n || repeat('x', 7000)) from generate_series(1, 100) n`
			return s.unlessOver(s.repeat(c, 200*time.Millisecond, 100, noise))
		})
	})
}

// notifyStorm wakes all pods thousands of times per second for no reason.
func notifyStorm(s *injection) error {
	return s.admin(s.ctx, func(c *pgx.Conn) error {
		const storm = `select pg_notify('trapeze_wake', n::text) from generate_series(1, 200) n`
		return s.unlessOver(s.repeat(c, 20*time.Millisecond, 200, storm))
	})
}

// repeat executes a statement at the given interval while the fault lasts, and adds the given number of hits each time.
func (s *injection) repeat(c *pgx.Conn, every time.Duration, hits int, sql string) error {
	for end := time.Now().Add(s.act.For); time.Now().Before(end) && s.wait(every); s.hit(hits) {
		if _, err := c.Exec(s.ctx, sql); err != nil {
			return err
		}
	}
	return nil
}

// longTransaction holds a snapshot and a transaction ID, so that dead rows cannot be vacuumed.
func longTransaction(s *injection) error {
	return s.admin(s.ctx, func(c *pgx.Conn) error {
		for _, sql := range []string{"begin isolation level repeatable read", "select pg_current_xact_id()", "select count(*) from trapeze.live"} {
			if _, err := c.Exec(s.ctx, sql); err != nil {
				return s.unlessOver(err)
			}
		}
		s.hit(1)
		s.waitPlanned()
		return nil
	})
}

// clockJumps returns a function that shifts the expiry of every lease, which has the same effect as a jump of the server's clock.
func clockJumps(by string) func(*injection) error {
	sql := `update trapeze.pods set lease_until = lease_until ` + by + ` where closed_at is null returning id::text`
	return func(s *injection) error {
		var podIDs []string
		defer func() { s.note("pod_ids", podIDs) }()
		return s.admin(s.ctx, func(c *pgx.Conn) error {
			for range s.act.Number {
				rows, err := c.Query(s.ctx, sql)
				if err != nil {
					return s.unlessOver(err)
				}
				struck, err := pgx.CollectRows(rows, pgx.RowTo[string])
				if err != nil {
					return s.unlessOver(err)
				}
				podIDs = append(podIDs, struck...)
				s.hit(len(struck))
				if !s.wait(s.act.For / time.Duration(s.act.Number)) {
					break
				}
			}
			return nil
		})
	}
}

// deleteSQL deletes running jobs on whose rows nothing else depends, because they have no subject, key or next step.
const deleteSQL = `
delete from trapeze.live where id in (
	select l.id from trapeze.live l join trapeze.jobs j using (id)
	where l.state = 'running' and l.kind = 'demo.sleep' and l.subject = '' and j.unique_key is null and j.planned is null
		and j.step = 0
	order by random() limit $1 for update of l skip locked)
returning id`

// deleteRow deletes running jobs directly in the database and records their IDs.
func deleteRow(s *injection) error {
	if pod, ok := s.crowd.pod(s.act.No); ok {
		for range s.act.Number {
			s.submit(pod, simple("demo.sleep", `{"ms":2500}`))
		}
	}
	return s.admin(s.ctx, func(c *pgx.Conn) error {
		rows, err := c.Query(s.ctx, deleteSQL, s.act.Number)
		if err != nil {
			return s.unlessOver(err)
		}
		ids, err := pgx.CollectRows(rows, pgx.RowTo[int64])
		if err != nil {
			return s.unlessOver(err)
		}
		s.hit(len(ids))
		s.note("jobs", texts(ids))
		return nil
	})
}

// texts formats IDs as strings, as they appear in JSON.
func texts(ids []int64) []string {
	list := make([]string, len(ids))
	for i, id := range ids {
		list[i] = strconv.FormatInt(id, 10)
	}
	return list
}

// lockTable takes an exclusive lock on the table of live jobs.
func lockTable(s *injection) error {
	return s.admin(s.ctx, func(c *pgx.Conn) error {
		for _, sql := range []string{"begin", "lock table trapeze.live in access exclusive mode"} {
			if _, err := c.Exec(s.ctx, sql); err != nil {
				return s.unlessOver(err)
			}
		}
		s.hit(1)
		s.waitPlanned()
		return nil
	})
}
