package pgembed

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"syscall"
	"time"
)

// takeOver stops all PostgreSQL processes that are still using this home. The caller holds the lock, so the processes' owner must be dead.
//
// The postmaster is stopped first, because it then ends the sessions itself.
func (h *home) takeOver(ctx context.Context, logger *slog.Logger) error {
	pgdata := h.pgdata()
	file, err := readPIDFile(pgdata)
	if err == nil && servesIn(file.pid, pgdata) {
		logger.WarnContext(ctx, "stopping an orphaned postgres", "server_pid", file.pid, "dir", h.dir)
		if err := stopStranger(ctx, file.pid, pgdata); err != nil {
			return err
		}
	}
	// Sessions whose postmaster was killed exit once they notice its death. Until then, no new server can start, because the sessions are
	// still using the shared memory.
	for _, pid := range serversIn(pgdata) {
		logger.WarnContext(ctx, "stopping an orphaned postgres session", "server_pid", pid, "dir", h.dir)
		if err := stopStranger(ctx, pid, pgdata); err != nil {
			return err
		}
	}
	return h.dropStalePIDFile()
}

// dropStalePIDFile removes a PID file whose PID now belongs to another process. PostgreSQL ignores a stale file only if no process has that
// PID, and containers soon reuse small PIDs.
func (h *home) dropStalePIDFile() error {
	file, err := readPIDFile(h.pgdata())
	if err != nil || !canListProcesses || !isAlive(file.pid) {
		return nil
	}
	// takeOver has verified that no PostgreSQL process is using this directory, which is the only case that the file protects against.
	return os.Remove(filepath.Join(h.pgdata(), "postmaster.pid"))
}

// stopStranger stops a server process that is not a child of this process.
func stopStranger(ctx context.Context, pid int, pgdata string) error {
	// On Linux, the handle stays bound to this process even if its PID is reused. The handle is therefore opened before servesIn checks
	// that the process may be stopped.
	p, err := os.FindProcess(pid)
	if err != nil {
		return nil
	}
	defer p.Release()
	for _, step := range []struct {
		sig    syscall.Signal
		within time.Duration
	}{{fastSignal, fastWithin}, {quitSignal, quitWithin}, {syscall.SIGKILL, quitWithin}} {
		if !servesIn(pid, pgdata) {
			return nil
		}
		if err := p.Signal(step.sig); err != nil && !errors.Is(err, os.ErrProcessDone) {
			return fmt.Errorf("stop orphaned postgres %d: %w", pid, err)
		}
		if err := waitGone(ctx, pid, pgdata, step.within); err != nil {
			return fmt.Errorf("stop orphaned postgres %d: %w", pid, err)
		}
	}
	if servesIn(pid, pgdata) {
		return fmt.Errorf("stop orphaned postgres %d: it does not exit", pid)
	}
	return nil
}

// waitGone waits for the process to exit, but no longer than within. It returns an error only if ctx is done.
func waitGone(ctx context.Context, pid int, pgdata string, within time.Duration) error {
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	enough := time.After(within)
	for servesIn(pid, pgdata) {
		select {
		case <-tick.C:
		case <-enough:
			return nil
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	return nil
}

// removeAbandoned removes temporary homes of this user whose owners were killed, and stops servers that are still running in them. Failures
// are harmless, because the next start retries.
func removeAbandoned(ctx context.Context, o Options) {
	for _, parent := range o.temporaryDirs() {
		homes, _ := filepath.Glob(filepath.Join(parent, throwAwayName+"*"))
		for _, dir := range homes {
			if err := removeIfAbandoned(ctx, dir, o.Logger); err != nil {
				o.Logger.WarnContext(ctx, "could not remove an abandoned postgres", "dir", dir, "err", err)
			}
		}
	}
}

func removeIfAbandoned(ctx context.Context, dir string, logger *slog.Logger) error {
	info, err := os.Lstat(dir)
	if err != nil || !info.IsDir() {
		return nil
	}
	if owner, ok := ownerOf(dir); !ok || int(owner.uid) != os.Geteuid() {
		return nil
	}
	lock, err := os.OpenFile(filepath.Join(dir, lockName), os.O_RDWR, 0)
	if errors.Is(err, fs.ErrNotExist) {
		// The owner has died or is about to create the lock.
		if time.Since(info.ModTime()) < time.Minute {
			return nil
		}
		return os.RemoveAll(dir)
	}
	if err != nil {
		return err
	}
	h := &home{dir: dir, lock: lock, throwAway: true}
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		return lock.Close() // the owner is alive
	}
	if err := h.takeOver(ctx, logger); err != nil {
		return errors.Join(err, lock.Close())
	}
	logger.InfoContext(ctx, "removing an abandoned postgres", "dir", dir)
	return h.close()
}

// isAlive reports whether a process with this PID exists.
func isAlive(pid int) bool {
	err := syscall.Kill(pid, 0)
	return err == nil || errors.Is(err, syscall.EPERM)
}
