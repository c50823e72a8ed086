// Package faultnet is a network that can be made to misbehave: a TCP proxy in front of PostgreSQL, in this process.
package faultnet

import (
	"errors"
	"net"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/jackc/pgx/v5/pgconn"
)

// Proxy is a network in front of PostgreSQL that a test can make misbehave. It passes bytes until told otherwise, except
// requests to cancel a statement, which are always lost: a statement may outlive its connection. Its methods are safe for
// concurrent use.
type Proxy struct {
	url             string
	network, target string
	listener        net.Listener
	running         sync.WaitGroup

	mu     sync.Mutex
	open   chan struct{} // closed while bytes pass
	passes bool
	ended  bool
	links  map[*link]bool
	match  func([]byte) bool // of CutReplyOnce
	cut    chan struct{}
}

// Start starts a proxy in front of the server of address, a PostgreSQL URL. Close ends it.
func Start(address string) (*Proxy, error) {
	config, err := pgconn.ParseConfig(address)
	if err != nil {
		return nil, err
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	p := &Proxy{listener: listener, open: make(chan struct{}), passes: true, links: map[*link]bool{}}
	close(p.open)
	p.network, p.target = pgconn.NetworkAddress(config.Host, config.Port)
	u := url.URL{Scheme: "postgres", User: url.UserPassword(config.User, config.Password), Host: listener.Addr().String(),
		Path: "/" + config.Database, RawQuery: "sslmode=disable"}
	p.url = u.String()
	p.running.Go(p.accept)
	return p, nil
}

// URL is the address of the same database through the proxy.
func (p *Proxy) URL() string { return p.url }

// Pass lets bytes through again, also those that were held back.
func (p *Proxy) Pass() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.passes {
		p.passes = true
		close(p.open)
	}
}

// Blackhole holds every byte back, both ways, without closing anything: a cable that was pulled. New connections are
// accepted and hear nothing.
func (p *Proxy) Blackhole() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.passes {
		p.passes = false
		p.open = make(chan struct{})
	}
}

// Reset breaks every connection there is. New ones are treated as before.
func (p *Proxy) Reset() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for l := range p.links {
		l.reset()
	}
}

// Stall makes every connection there is a half-open one: nothing passes on it any more, and nobody is told. New ones are
// treated as before.
func (p *Proxy) Stall() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for l := range p.links {
		l.stalled.Store(true)
	}
}

// CutReplyOnce breaks one connection at the moment the server answers what a client sent and match recognised, so that
// the client never learns what came of it. The channel that it returns is closed then. Statements are prepared: what can
// be recognised is the text of a parameter, and "commit".
func (p *Proxy) CutReplyOnce(match func(clientBytes []byte) bool) (done <-chan struct{}) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.match, p.cut = match, make(chan struct{})
	return p.cut
}

// Close breaks every connection and waits until nothing of the proxy is left.
func (p *Proxy) Close() {
	_ = p.listener.Close()
	p.mu.Lock()
	p.ended = true
	p.mu.Unlock()
	p.Reset()
	p.running.Wait()
}

func (p *Proxy) accept() {
	for {
		client, err := p.listener.Accept()
		if err != nil {
			return
		}
		p.running.Go(func() { p.serve(client) })
	}
}

func (p *Proxy) serve(client net.Conn) {
	server, err := net.Dial(p.network, p.target)
	if err != nil {
		_ = client.Close()
		return
	}
	l := &link{p: p, client: client, server: server, closed: make(chan struct{})}
	p.mu.Lock()
	p.links[l] = true
	if p.ended {
		l.reset()
	}
	p.mu.Unlock()
	var back sync.WaitGroup
	back.Go(func() { l.pump(client, server, l.replies) })
	l.pump(server, client, l.asks)
	back.Wait()
	p.mu.Lock()
	delete(p.links, l)
	p.mu.Unlock()
}

// link is one connection of a client with the server.
type link struct {
	p              *Proxy
	client, server net.Conn
	once           sync.Once
	closed         chan struct{}
	cut            atomic.Pointer[chan struct{}] // its next reply is cut
	stalled        atomic.Bool
}

// reset closes both ends; the client sees a connection reset.
func (l *link) reset() {
	l.once.Do(func() {
		close(l.closed)
		if c, ok := l.client.(*net.TCPConn); ok {
			_ = c.SetLinger(0)
		}
		_ = l.client.Close()
		_ = l.server.Close()
	})
}

// pump moves bytes one way until either end closes, as long as look agrees.
func (l *link) pump(to, from net.Conn, look func([]byte) error) {
	defer l.reset()
	buf := make([]byte, 64<<10)
	for {
		n, err := from.Read(buf)
		if err != nil {
			return
		}
		l.p.mu.Lock()
		open := l.p.open
		l.p.mu.Unlock()
		if l.stalled.Load() {
			open = nil
		}
		select {
		case <-open:
		case <-l.closed:
			return
		}
		if look(buf[:n]) != nil {
			return
		}
		if _, err := to.Write(buf[:n]); err != nil {
			return
		}
	}
}

// cancelRequest begins a request to cancel a statement: its length and its code, in PostgreSQL's protocol.
const cancelRequest = "\x00\x00\x00\x10\x04\xd2\x16\x2e"

func (l *link) asks(bytes []byte) error {
	if strings.HasPrefix(string(bytes), cancelRequest) {
		return errors.New("a request to cancel is lost")
	}
	l.p.mu.Lock()
	defer l.p.mu.Unlock()
	if l.p.match != nil && l.p.match(bytes) {
		cut := l.p.cut
		l.cut.Store(&cut)
		l.p.match = nil
	}
	return nil
}

func (l *link) replies([]byte) error {
	if cut := l.cut.Load(); cut != nil {
		close(*cut)
		return errors.New("the reply is cut")
	}
	return nil
}
