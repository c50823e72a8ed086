package worker

import (
	"sync"

	"github.com/trapeze-run/trapeze/remote/remotepb"
)

// server is a pod, or a balancer of several, that the worker may speak to.
type server struct {
	address string
	client  remotepb.WorkersClient
}

// servers are those of Options.Server: one is tried at a time. Safe for concurrent use.
type servers struct {
	all []server

	mu sync.Mutex
	at int
}

// now is the one that is tried now.
func (s *servers) now() server {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.all[s.at]
}

// next has the one after it tried.
func (s *servers) next() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.at = (s.at + 1) % len(s.all)
}
