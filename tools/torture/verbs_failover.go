package torture

import (
	"context"
	"errors"
	"fmt"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/trapeze-run/trapeze/internal/pgembed"
)

// standbyWithin limits how long starting a standby may take. A standby first copies the primary.
const standbyWithin = 60 * time.Second

// failover kills the primary and promotes a standby. Until then, the standby is synchronous, so it holds every confirmed commit, and all
// invariants apply without exception. While the fault lasts, there is no primary.
func failover(s *injection) error {
	ctx, cancel := context.WithTimeout(s.ctx, standbyWithin)
	defer cancel()
	old := s.w.Server()
	standby, err := pgembed.Start(ctx, pgembed.Options{Logger: s.w.log, StandbyOf: old.URL(), Settings: s.w.serverSettings})
	if err != nil {
		return s.unlessOver(err)
	}
	if err := s.synchronous(ctx); err != nil {
		restored := s.heal(func(ctx context.Context, c *pgx.Conn) error { return setSynchronous(ctx, c, "") })
		return errors.Join(s.unlessOver(err), restored, standby.Stop())
	}
	s.began = time.Now()
	s.w.killServer()
	s.hit(1)
	s.waitPlanned()
	if err := s.promote(standby); err != nil {
		// The old primary holds every commit that the standby holds, so it can continue as the primary.
		healing, cancel := s.healing()
		defer cancel()
		return errors.Join(err, old.Restart(healing, "immediate"), standby.Stop())
	}
	s.w.server.Store(standby)
	return old.Stop()
}

// synchronous makes commits wait for the standby. It returns once the standby is in sync.
func (s *injection) synchronous(ctx context.Context) error {
	return s.admin(ctx, func(c *pgx.Conn) error {
		if err := setSynchronous(ctx, c, "*"); err != nil {
			return err
		}
		const sql = `select exists (select from pg_stat_replication where sync_state = 'sync' and state = 'streaming')`
		var is bool
		for !is {
			if err := c.QueryRow(ctx, sql).Scan(&is); err != nil {
				return err
			}
			if !sleep(ctx, 50*time.Millisecond) {
				return context.Cause(ctx)
			}
		}
		return nil
	})
}

func setSynchronous(ctx context.Context, c *pgx.Conn, names string) error {
	for _, sql := range []string{"alter system set synchronous_standby_names = '" + names + "'", "select pg_reload_conf()"} {
		if _, err := c.Exec(ctx, sql); err != nil {
			return err
		}
	}
	return nil
}

// killServer kills every process of the primary, as if its machine had failed. It freezes the postmaster first, which would otherwise shut
// down its children.
func (w *World) killServer() {
	_ = syscall.Kill(w.Server().PID(), syscall.SIGSTOP)
	for _, pid := range w.ServerPIDs() {
		_ = syscall.Kill(pid, syscall.SIGKILL) // the process may already be gone
	}
}

// promote promotes a standby and waits until it accepts writes, even if the run is over.
func (s *injection) promote(standby *pgembed.Server) error {
	ctx, cancel := s.healing()
	defer cancel()
	conn, err := pgx.Connect(ctx, standby.URL())
	if err != nil {
		return err
	}
	defer closeConn(conn)
	var promoted bool
	if err := conn.QueryRow(ctx, `select pg_promote(true, 10)`).Scan(&promoted); err != nil {
		return fmt.Errorf("promote the standby: %w", err)
	}
	if !promoted {
		return errors.New("promote the standby: it is still in recovery after 10 s")
	}
	return nil
}
