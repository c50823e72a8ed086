package fleet

import (
	"sync"
	"time"
)

// Sender sends a process's notifications. It sends the first one immediately and merges those in the following interval, because the commit
// of a notification takes a server-wide lock and signals every listening session. It is safe for concurrent use.
type Sender struct {
	every time.Duration
	send  func()

	sending sync.Mutex // held while a notification is sent

	mu      sync.Mutex
	planned bool
	timer   *time.Timer
	latest  time.Time
}

// NewSender returns a Sender that calls send for one notification at a time, at most once per interval.
func NewSender(every time.Duration, send func()) *Sender { return &Sender{every: every, send: send} }

// Send plans a notification, or merges it with the planned one. If wait is set, no notification is planned and none was sent during the
// last interval, Send sends it before returning.
func (s *Sender) Send(wait bool) {
	s.mu.Lock()
	pause := time.Until(s.latest.Add(s.every))
	at := !s.planned && wait && pause <= 0
	if !s.planned && !at {
		s.timer = time.AfterFunc(pause, s.sendPlanned)
	}
	s.planned = true
	s.mu.Unlock()
	if at {
		s.sendPlanned()
	}
}

func (s *Sender) sendPlanned() {
	s.sending.Lock()
	defer s.sending.Unlock()
	s.mu.Lock()
	planned := s.planned
	if planned {
		s.planned, s.latest = false, time.Now()
	}
	s.mu.Unlock()
	if planned {
		s.send()
	}
}

// Flush sends the planned notification immediately, for example before the process ends. It also waits for a notification that is being
// sent.
func (s *Sender) Flush() {
	s.mu.Lock()
	if s.timer != nil {
		s.timer.Stop()
	}
	s.mu.Unlock()
	s.sendPlanned()
}
