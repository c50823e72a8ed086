package worker

import (
	"sync"

	"github.com/trapeze-run/trapeze/remote/remotepb"
)

// server is a pod, or a load balancer in front of several pods, that the worker can connect to.
type server struct {
	address string
	client  remotepb.WorkersClient
}

// servers holds the addresses in Options.Server and selects one at a time. It is safe for concurrent use.
type servers struct {
	all []server

	mu sync.Mutex
	at int
}

// now returns the currently selected server.
func (s *servers) now() server {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.all[s.at]
}

// next selects the next server.
func (s *servers) next() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.at = (s.at + 1) % len(s.all)
}
