package wake

import (
	"sync"
	"time"
)

// Sender sends the notifications of one process. It sends the first one at once and merges those of the next interval, because committing
// a notification takes a lock of the whole server and signals every listening session. It is safe for concurrent use.
type Sender struct {
	every time.Duration
	send  func(Up)

	sending sync.Mutex // held while a notification is sent

	mu     sync.Mutex
	next   *Up // the planned notification, or nil
	timer  *time.Timer
	latest time.Time
}

// NewSender returns a Sender that sends with the given function, one call at a time and at most one per interval.
func NewSender(every time.Duration, send func(Up)) *Sender { return &Sender{every: every, send: send} }

// Send plans a notification, or merges it with the one that is planned. If wait is set and none was sent lately, Send sends it before it
// returns.
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

// Flush sends the planned notification at once, for example before the process ends. It waits for the one that is being sent.
func (s *Sender) Flush() {
	s.mu.Lock()
	if s.timer != nil {
		s.timer.Stop()
	}
	s.mu.Unlock()
	s.sendNext()
}
