package worker

import (
	"sync"

	"github.com/trapeze-run/trapeze/remote/remotepb"
)

// server is a pod, or a load balancer in front of several, to which the worker may connect.
type server struct {
	address string
	client  remotepb.WorkersClient
}

// servers holds the addresses in Options.Server, of which one is tried at a time. Safe for
// concurrent use.
type servers struct {
	all []server

	mu sync.Mutex
	at int
}

// now returns the server that is currently tried.
func (s *servers) now() server {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.all[s.at]
}

// next switches to the next server.
func (s *servers) next() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.at = (s.at + 1) % len(s.all)
}
