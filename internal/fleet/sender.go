package fleet

import (
	"sync"
	"time"
)

// Sender sends a process's notifications. It sends the first one immediately and merges those in the following interval, because the commit
// of a notification takes a server-wide lock and signals every listening session. It is safe for concurrent use.
type Sender struct {
	every time.Duration
	send  func(Up)

	sending sync.Mutex // held while a notification is sent

	mu     sync.Mutex
	next   *Up // the planned notification, or nil
	timer  *time.Timer
	latest time.Time
}

// NewSender returns a Sender that calls send for one notification at a time, at most once per interval.
func NewSender(every time.Duration, send func(Up)) *Sender { return &Sender{every: every, send: send} }

// Send plans a notification, or merges it with the planned one. If wait is set, no notification is planned and none was sent during the
// last interval, Send sends it before returning.
func (s *Sender) Send(u Up, wait bool) {
	s.mu.Lock()
	planned := s.next != nil
	if !planned || u.Skip == 0 {
		s.next = &u
	}
	pause := time.Until(s.latest.Add(s.every))
	at := !planned && wait && pause <= 0
	if !planned && !at {
		s.timer = time.AfterFunc(pause, s.sendNext)
	}
	s.mu.Unlock()
	if at {
		s.sendNext()
	}
}

func (s *Sender) sendNext() {
	s.sending.Lock()
	defer s.sending.Unlock()
	s.mu.Lock()
	next := s.next
	if next != nil {
		s.next, s.latest = nil, time.Now()
	}
	s.mu.Unlock()
	if next != nil {
		s.send(*next)
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
	s.sendNext()
}
