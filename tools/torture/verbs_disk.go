package torture

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// smallSpace is the number of bytes by which the event history may grow on the small disk.
const smallSpace = 16 << 20

// These statements fill a disk. They use an in-memory tablespace that holds today's events, and a table that fills up the space.
const (
	spaceSQL   = `create tablespace small location '%s'`
	eventsSQL  = `select to_char(now() at time zone 'UTC', '"trapeze.job_events_"YYYYMMDD')`
	ballastSQL = `create table public.ballast (filler text) with (autovacuum_enabled = off) tablespace small`
	plainSQL   = `alter table public.ballast alter filler set storage plain`
	fillSQL    = `insert into public.ballast select repeat('x', 7000) from generate_series(1, $1::int)`
)

// diskFull moves today's events to a small separate disk and fills it up, so that every statement that creates an event fails. Without
// permission to mount, the fault has no effect.
func diskFull(s *injection) (err error) {
	dir := filepath.Join(s.w.Server().Dir(), "small")
	var events string
	var size int64
	err = s.admin(s.ctx, func(c *pgx.Conn) error {
		if err := c.QueryRow(s.ctx, eventsSQL).Scan(&events); err != nil {
			return err
		}
		return c.QueryRow(s.ctx, `select pg_total_relation_size($1::regclass)`, events).Scan(&size)
	})
	if err != nil {
		return s.unlessOver(err)
	}
	if err := mountSmall(s.w.Server().Dir(), dir, 2*size+smallSpace); err != nil {
		return err
	}
	defer func() {
		err = errors.Join(err, s.heal(func(ctx context.Context, c *pgx.Conn) error { return emptySmall(ctx, c, events) }), unmountSmall(dir))
	}()
	err = s.admin(s.ctx, func(c *pgx.Conn) error {
		for _, sql := range []string{fmt.Sprintf(spaceSQL, dir), "set lock_timeout = '3s'", "alter table " + events + " set tablespace small", ballastSQL, plainSQL} {
			// The context is never cancelled, because a cancelled statement may still take effect, even after the statement that undoes it.
			if _, err := c.Exec(context.WithoutCancel(s.ctx), sql); err != nil {
				return err
			}
		}
		return s.fill(c)
	})
	if err != nil {
		return s.unlessOver(err)
	}
	s.hit(1)
	s.waitPlanned()
	return nil
}

// fill inserts rows until not even one more row fits.
func (s *injection) fill(c *pgx.Conn) error {
	for rows := 256; rows > 0; {
		_, err := c.Exec(s.ctx, fillSQL, rows)
		if pg, ok := errors.AsType[*pgconn.PgError](err); ok && pg.Code == "53100" {
			rows /= 4
		} else if err != nil {
			return err
		}
	}
	return nil
}

// emptySmall frees space and then moves the events back. All statements can safely be repeated.
func emptySmall(ctx context.Context, c *pgx.Conn, events string) error {
	for _, sql := range []string{
		"drop table if exists public.ballast", "set lock_timeout = '2s'",
		"alter table " + events + " set tablespace pg_default", "drop tablespace if exists small",
	} {
		if _, err := c.Exec(ctx, sql); err != nil {
			return fmt.Errorf("%s: %w", sql, err)
		}
	}
	return nil
}

// mountSmall mounts an in-memory file system of the given size, owned by the server's user.
func mountSmall(home, dir string, bytes int64) error {
	if err := os.Mkdir(dir, 0o700); err != nil {
		return err
	}
	err := command("mount", "-t", "tmpfs", "-o", fmt.Sprintf("size=%d", bytes), "tmpfs", dir)
	if err == nil {
		if err = command("chown", "--reference", filepath.Join(home, "pgdata"), dir); err == nil {
			return os.Chmod(dir, 0o700)
		}
		err = errors.Join(err, command("umount", "-l", dir))
	}
	return errors.Join(err, os.Remove(dir))
}

func unmountSmall(dir string) error {
	return errors.Join(command("umount", "-l", dir), os.Remove(dir))
}

func command(name string, args ...string) error {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	if out, err := exec.CommandContext(ctx, name, args...).CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w: %s", name, err, strings.TrimSpace(string(out)))
	}
	return nil
}
