package pgembed

import (
	"context"
	"fmt"
	"time"
)

// The pause before a new attempt to start a server that has exited. Each pause is twice as long as the previous one.
const (
	minPause = 100 * time.Millisecond
	maxPause = 15 * time.Second
)

// KeepRunning restarts the server after each exit, until ctx is done or Stop is called. It logs each exit with the end of the server's
// log. While the server cannot start, for example because the disk is full, KeepRunning keeps trying, and logs the first failure.
func (s *Server) KeepRunning(ctx context.Context) {
	pause := minPause
	for failures := 0; ; {
		proc := s.process()
		started := time.Now()
		select {
		case <-ctx.Done():
			return
		case <-proc.done:
		}
		if time.Since(started) > maxPause {
			pause = minPause // the server ran for a while
		}
		again, err := s.startAfterExit(ctx, proc, failures == 0)
		switch {
		case !again || ctx.Err() != nil:
			return
		case err != nil:
			if failures++; failures == 1 {
				s.logger.ErrorContext(ctx, "postgres does not start again: trying until it does, free disk space or memory", "err", err)
			}
		default:
			failures = 0
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(pause):
			pause = min(2*pause, maxPause)
		}
	}
}

func (s *Server) process() *process {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.proc
}

// startAfterExit starts the server if exited is still its last process. It returns false if the server was stopped permanently.
func (s *Server) startAfterExit(ctx context.Context, exited *process, first bool) (again bool, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stopped || s.proc != exited {
		return !s.stopped, nil
	}
	if first {
		s.logger.ErrorContext(ctx, "postgres exited: starting it again", "server_pid", exited.pid, "err", orClean(exited.err), "log", s.logTail())
	}
	if err := s.home.takeOver(ctx, s.logger); err != nil {
		return true, err
	}
	if err := s.start(ctx); err != nil {
		return true, err
	}
	s.logger.InfoContext(ctx, "postgres started again", "server_pid", s.proc.pid, "port", s.port)
	return true, nil
}

// logTail returns the end of the server's log.
func (s *Server) logTail() string {
	log, err := s.home.openLog()
	if err != nil {
		return fmt.Sprintf("(%v)", err)
	}
	defer log.Close()
	return tail(log)
}
