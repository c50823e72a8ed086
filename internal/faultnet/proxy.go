// Package faultnet simulates network faults. It provides an in-process TCP proxy in front of PostgreSQL or any other server.
//
//	proxy.go  the faults that a test can request
//	link.go   one connection, with two pumps that apply the faults
//	wire.go   parses the client's messages, so that the reply to a given statement can be cut
//	listen_in.go  reports the statements sent over a connection, without a proxy
package faultnet

import (
	"net"
	"net/url"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
)

// Proxy simulates a faulty network in front of a server. By default, it passes on all bytes. It always drops requests to cancel a
// statement, however, so a statement may outlive its connection. The methods are safe for concurrent use.
type Proxy struct {
	url      string
	target   func() (network, address string)
	listener net.Listener
	running  sync.WaitGroup

	mu     sync.Mutex
	gates  [2]gate // indexed by Direction
	delay  time.Duration
	rate   int // bytes per second; 0 means no limit
	refuse bool
	most   int // maximum number of connections; 0 means no limit
	ended  bool
	links  map[*link]bool
	match  func([]byte) bool // set by CutReplyOnce
	cut    chan struct{}
	armed  *armed // set by CutReply
}

// Direction is the direction in which bytes travel.
type Direction int

// The directions.
const (
	ToServer Direction = iota
	ToClient
)

// gate holds bytes back while it is closed.
type gate struct {
	open chan struct{} // closed while bytes pass
	shut bool
}

func (g *gate) close() {
	if !g.shut {
		g.shut, g.open = true, make(chan struct{})
	}
}

func (g *gate) pass() {
	if g.shut {
		g.shut = false
		close(g.open)
	}
}

// Start starts a proxy in front of the server at address, a PostgreSQL URL. Close stops it.
func Start(address string) (*Proxy, error) {
	config, err := pgconn.ParseConfig(address)
	if err != nil {
		return nil, err
	}
	network, server := pgconn.NetworkAddress(config.Host, config.Port)
	return StartFollowing(address, func() (string, string) { return network, server })
}

// StartFollowing is like Start, but for a server whose address changes: each new connection goes to the address that target returns.
func StartFollowing(address string, target func() (network, address string)) (*Proxy, error) {
	config, err := pgconn.ParseConfig(address)
	if err != nil {
		return nil, err
	}
	p, err := listen(target)
	if err != nil {
		return nil, err
	}
	u := url.URL{Scheme: "postgres", User: url.UserPassword(config.User, config.Password), Host: p.Addr(),
		Path: "/" + config.Database, RawQuery: "sslmode=disable"}
	p.url = u.String()
	p.running.Go(p.accept)
	return p, nil
}

// StartTo starts a proxy that forwards each new connection to the address that target returns, which may change, for example when a program
// is restarted. If the address is empty, the proxy breaks the connection. Close stops the proxy. Cutting replies by statement works only
// with PostgreSQL.
func StartTo(target func() (network, address string)) (*Proxy, error) {
	p, err := listen(target)
	if err != nil {
		return nil, err
	}
	p.running.Go(p.accept)
	return p, nil
}

// listen returns a proxy that is listening but not serving connections yet.
func listen(target func() (network, address string)) (*Proxy, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	p := &Proxy{target: target, listener: listener, links: map[*link]bool{}}
	for d := range p.gates {
		p.gates[d].open = make(chan struct{})
		close(p.gates[d].open)
	}
	return p, nil
}

// URL returns the URL of the same database through the proxy, or an empty string if the server is not PostgreSQL.
func (p *Proxy) URL() string { return p.url }

// Addr returns the proxy's address as host:port.
func (p *Proxy) Addr() string { return p.listener.Addr().String() }

// Links returns the number of connections.
func (p *Proxy) Links() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.links)
}

// Pass ends all faults: bytes flow at full speed again, including those that were held back, and new connections are accepted. Pass does
// not affect stalled connections or pending cuts.
func (p *Proxy) Pass() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.delay, p.rate, p.refuse, p.most = 0, 0, false, 0
	for d := range p.gates {
		p.gates[d].pass()
	}
}

// Blackhole holds back every byte in both directions without closing any connection, as if the cable had been pulled. New connections are
// accepted but receive nothing.
func (p *Proxy) Blackhole() {
	p.BlackholeOneWay(ToServer)
	p.BlackholeOneWay(ToClient)
}

// BlackholeOneWay holds back every byte in one direction.
func (p *Proxy) BlackholeOneWay(d Direction) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.gates[d].close()
}

// Delay delays all data by d in each direction, until Pass is called.
func (p *Proxy) Delay(d time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.delay = d
}

// Throttle limits each connection to bytesPerSecond in each direction, until Pass is called.
func (p *Proxy) Throttle(bytesPerSecond int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.rate = bytesPerSecond
}

// Refuse breaks every new connection immediately, until Pass is called. Existing connections remain open.
func (p *Proxy) Refuse() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.refuse = true
}

// Limit breaks new connections that would exceed the given number of connections, until Pass is called. Existing connections remain open.
func (p *Proxy) Limit(connections int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.most = connections
}

// Reset breaks every existing connection. New ones are not affected.
func (p *Proxy) Reset() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for l := range p.links {
		l.reset()
	}
}

// Stall makes every existing connection half-open: no more bytes pass, and neither end notices. New connections are not affected.
func (p *Proxy) Stall() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for l := range p.links {
		l.stalled.Store(true)
	}
}

// CutAfter breaks each existing connection once the server has sent the given number of further bytes on it, probably in the middle of a
// message.
func (p *Proxy) CutAfter(bytes int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for l := range p.links {
		l.left.Store(int64(max(bytes, 1)))
	}
}

// CutReplyOnce breaks one connection when the server replies to client bytes for which match returned true, so that the client never learns
// the outcome. It then closes the returned channel. Because statements are prepared, match can recognize only parameters and "commit". To
// recognize statements, use CutReply.
func (p *Proxy) CutReplyOnce(match func(clientBytes []byte) bool) (done <-chan struct{}) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.match, p.cut = match, make(chan struct{})
	return p.cut
}

// CutReply breaks one connection at the reply that would confirm the next statement that contains text, so that the client never learns the
// outcome. If the statement is part of a transaction, that is the reply to the COMMIT. An empty text matches the commit of any transaction.
// Prepared statements are recognized by their original text. The returned channel is closed when the reply is cut. A later call replaces an
// earlier one, and disarm cancels it.
func (p *Proxy) CutReply(text string) (done <-chan struct{}, disarm func()) {
	a := &armed{text: text, done: make(chan struct{})}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.armed = a
	return a.done, func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		if p.armed == a {
			p.armed = nil
		}
	}
}

// Close breaks every connection and waits for the proxy's goroutines to return.
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
	network, address := p.target()
	if address == "" {
		_ = client.Close()
		return
	}
	p.mu.Lock()
	refused := p.refuse
	p.mu.Unlock()
	if refused { // without starting a session on the server
		reset(client)
		return
	}
	server, err := net.Dial(network, address)
	if err != nil {
		_ = client.Close()
		return
	}
	l := &link{p: p, client: client, server: server, closed: make(chan struct{})}
	p.mu.Lock()
	if p.ended || p.refuse || p.most > 0 && len(p.links) >= p.most {
		l.reset()
	}
	p.links[l] = true
	p.mu.Unlock()
	var back sync.WaitGroup
	back.Go(func() { l.pump(ToClient, client, server, l.replies) })
	l.pump(ToServer, server, client, l.asks)
	back.Wait()
	p.mu.Lock()
	delete(p.links, l)
	p.mu.Unlock()
}
