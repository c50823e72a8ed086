package torture

import (
	"context"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
)

// serverInjectors disturb PostgreSQL's processes and sessions.
var serverInjectors = []injector{
	{name: "restart", fault: "F19", weight: .05, aim: atAll, do: restart},
	{name: "down", fault: "F20", weight: .02, aim: atAll, shortest: leaseDuration + time.Second, longest: 10 * time.Second, do: down},
	{name: "terminate", fault: "F21", weight: .06, do: terminate},
	{name: "terminate_storm", fault: "F21", weight: .04, aim: atAll, shortest: 2 * time.Second, longest: 8 * time.Second, do: terminateStorm},
	{name: "freeze_server", fault: "F22", weight: .03, aim: atAll, shortest: leaseDuration, longest: 9 * time.Second, do: freezeServer},
	{name: "exhaust", fault: "F26", weight: .03, aim: atAll, shortest: leaseDuration, longest: 9 * time.Second, do: exhaust},
}

// restart crashes the server as a power failure would, and restarts it.
func restart(s *injection) error {
	ctx, cancel := s.healing()
	defer cancel()
	s.hit(1)
	return s.w.Server().Restart(ctx, "immediate")
}

// down crashes the server and restarts it when the fault is over.
func down(s *injection) error {
	if err := syscall.Kill(s.w.Server().PID(), syscall.SIGQUIT); err != nil {
		return err
	}
	s.hit(1)
	s.waitPlanned()
	ctx, cancel := s.healing()
	defer cancel()
	return s.w.Server().Restart(ctx, "immediate")
}

// terminateSQL terminates all pods' sessions. Each pod connects as a separate role.
const terminateSQL = `select count(*) filter (where pg_terminate_backend(pid)) from pg_stat_activity where usename like 'pod%'`

func (s *injection) terminate(ctx context.Context, c *pgx.Conn) error {
	var n int
	if err := c.QueryRow(ctx, terminateSQL).Scan(&n); err != nil {
		return err
	}
	s.hit(n)
	return nil
}

func terminate(s *injection) error {
	return s.admin(s.ctx, func(c *pgx.Conn) error { return s.terminate(s.ctx, c) })
}

// terminateStorm terminates all sessions twice per second.
func terminateStorm(s *injection) error {
	return s.admin(s.ctx, func(c *pgx.Conn) error {
		for end := time.Now().Add(s.act.For); time.Now().Before(end); {
			if err := s.terminate(s.ctx, c); err != nil {
				return s.unlessOver(err)
			}
			s.wait(500 * time.Millisecond)
		}
		return nil
	})
}

// unlessOver returns err, or nil if the run is over, because its end may have interrupted the statement.
func (s *injection) unlessOver(err error) error {
	if s.ctx.Err() != nil {
		return nil
	}
	return err
}

// freezeServer first freezes the postmaster, so that no new processes start, and then its children.
func freezeServer(s *injection) error {
	defer s.w.thawServer()
	if err := syscall.Kill(s.w.Server().PID(), syscall.SIGSTOP); err != nil {
		return err
	}
	for _, pid := range s.w.ServerPIDs() {
		if syscall.Kill(pid, syscall.SIGSTOP) == nil {
			s.hit(1)
		}
	}
	s.waitPlanned()
	return nil
}

// exhaust takes every connection available to ordinary users. It then terminates the pods' connections and takes those that become free.
func exhaust(s *injection) error {
	var held []*pgx.Conn
	defer func() {
		for _, c := range held {
			closeConn(c)
		}
	}()
	take := func() {
		for s.ctx.Err() == nil {
			connecting, cancel := context.WithTimeout(s.ctx, time.Second)
			c, err := pgx.Connect(connecting, s.w.AppURL())
			cancel()
			if err != nil {
				return
			}
			held = append(held, c)
			s.hit(1)
		}
	}
	return s.admin(s.ctx, func(c *pgx.Conn) error {
		end := time.Now().Add(s.act.For)
		take()
		if _, err := c.Exec(s.ctx, terminateSQL); err != nil {
			return s.unlessOver(err)
		}
		for time.Now().Before(end) && s.wait(20*time.Millisecond) {
			take()
		}
		return nil
	})
}
