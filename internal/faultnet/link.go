package faultnet

import (
	"errors"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// link is one connection between a client and the server.
type link struct {
	p              *Proxy
	client, server net.Conn
	once           sync.Once
	closed         chan struct{}
	cut            atomic.Pointer[chan struct{}] // set if the next reply on this link is to be cut
	left           atomic.Int64                  // bytes left until CutAfter breaks the link; 0 means no limit
	stalled        atomic.Bool
	wire           wire // used only by the pump to the server
}

// reset closes both ends abruptly, so that the client sees a connection reset.
func (l *link) reset() {
	l.once.Do(func() {
		close(l.closed)
		reset(l.client)
		_ = l.server.Close()
	})
}

func reset(client net.Conn) {
	if c, ok := client.(*net.TCPConn); ok {
		_ = c.SetLinger(0)
	}
	_ = client.Close()
}

// pump copies bytes in one direction until either end is closed or look returns an error. look returns the number of bytes to pass on.
func (l *link) pump(way Direction, to, from net.Conn, look func([]byte) (int, error)) {
	defer l.reset()
	buf := make([]byte, 64<<10)
	for {
		n, err := from.Read(buf)
		if err != nil {
			return
		}
		if !l.mayPass(way, n) {
			return
		}
		passes, err := look(buf[:n])
		if _, failed := to.Write(buf[:passes]); failed != nil || err != nil {
			return
		}
	}
}

// mayPass blocks as long as bytes are held back. It returns false if the connection breaks in the meantime.
func (l *link) mayPass(way Direction, n int) bool {
	l.p.mu.Lock()
	open, wait := l.p.gates[way].open, l.p.delay
	if l.p.rate > 0 {
		wait += time.Duration(n) * time.Second / time.Duration(l.p.rate)
	}
	l.p.mu.Unlock()
	if wait > 0 {
		select {
		case <-time.After(wait):
		case <-l.closed:
			return false
		}
	}
	if l.stalled.Load() {
		open = nil
	}
	select {
	case <-open:
		return true
	case <-l.closed:
		return false
	}
}

// cancelRequest is the beginning of a cancel request in the PostgreSQL protocol, consisting of its length and code.
const cancelRequest = "\x00\x00\x00\x10\x04\xd2\x16\x2e"

func (l *link) asks(bytes []byte) (int, error) {
	if l.p.url == "" { // not PostgreSQL
		return len(bytes), nil
	}
	if strings.HasPrefix(string(bytes), cancelRequest) {
		return 0, errors.New("a cancel request is dropped")
	}
	statements := l.wire.read(bytes)
	l.p.mu.Lock()
	defer l.p.mu.Unlock()
	if l.p.match != nil && l.p.match(bytes) {
		cut := l.p.cut
		l.cut.Store(&cut)
		l.p.match = nil
	}
	for _, s := range statements {
		if l.wire.hits(s, l.p.armed) {
			l.cut.Store(&l.p.armed.done)
			l.p.armed = nil
		}
	}
	return len(bytes), nil
}

func (l *link) replies(bytes []byte) (int, error) {
	if cut := l.cut.Load(); cut != nil {
		close(*cut)
		return 0, errors.New("the reply is cut")
	}
	if left := l.left.Load(); left > 0 {
		if int64(len(bytes)) >= left {
			return int(left - 1), errors.New("the connection is cut")
		}
		l.left.Add(-int64(len(bytes)))
	}
	return len(bytes), nil
}
