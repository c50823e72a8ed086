// Package faultnet is a network that can be made to misbehave: a TCP proxy in front of PostgreSQL, or of any other server, in
// this process.
//
//	proxy.go  what a test can ask for
//	link.go   one connection: two pumps that obey
//	wire.go   what the client sends, read along, so that a reply can be cut by the statement it answers
package faultnet

import (
	"net"
	"net/url"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
)

// Proxy is a network in front of a server that a test can make misbehave. It passes bytes until told otherwise, except
// requests to cancel a statement, which are always lost: a statement may outlive its connection. Its methods are safe for
// concurrent use.
type Proxy struct {
	url      string
	target   func() (network, address string)
	listener net.Listener
	running  sync.WaitGroup

	mu     sync.Mutex
	gates  [2]gate // by Direction
	delay  time.Duration
	rate   int // bytes a second, 0: as many as can be
	refuse bool
	most   int // connections, 0: as many as come
	ended  bool
	links  map[*link]bool
	match  func([]byte) bool // of CutReplyOnce
	cut    chan struct{}
	armed  *armed // of CutReply
}

// Direction is one of the two in which bytes travel.
type Direction int

// The directions.
const (
	ToServer Direction = iota
	ToClient
)

// gate holds bytes back while it is shut.
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

// Start starts a proxy in front of the server of address, a PostgreSQL URL. Close ends it.
func Start(address string) (*Proxy, error) {
	config, err := pgconn.ParseConfig(address)
	if err != nil {
		return nil, err
	}
	network, server := pgconn.NetworkAddress(config.Host, config.Port)
	return StartFollowing(address, func() (string, string) { return network, server })
}

// StartFollowing is Start for a server whose place changes: each new connection is led where target says then.
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

// StartTo starts a proxy in front of whatever target says when a connection comes: a program that is started anew has another
// port. An empty address is nobody, and the connection is broken. Close ends it. What it cuts by statements is PostgreSQL's alone.
func StartTo(target func() (network, address string)) (*Proxy, error) {
	p, err := listen(target)
	if err != nil {
		return nil, err
	}
	p.running.Go(p.accept)
	return p, nil
}

// listen makes a proxy that does not serve yet.
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

// URL is the address of the same database through the proxy, "" when it is in front of something else.
func (p *Proxy) URL() string { return p.url }

// Addr is where the proxy listens, host:port.
func (p *Proxy) Addr() string { return p.listener.Addr().String() }

// Links is how many connections there are.
func (p *Proxy) Links() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.links)
}

// Pass lets bytes through again, also those that were held back, at once and as fast as they come, and takes every new
// connection. Connections that were stalled or that are to be cut stay so.
func (p *Proxy) Pass() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.delay, p.rate, p.refuse, p.most = 0, 0, false, 0
	for d := range p.gates {
		p.gates[d].pass()
	}
}

// Blackhole holds every byte back, both ways, without closing anything: a cable that was pulled. New connections are
// accepted and hear nothing.
func (p *Proxy) Blackhole() {
	p.BlackholeOneWay(ToServer)
	p.BlackholeOneWay(ToClient)
}

// BlackholeOneWay holds every byte back that travels in one direction.
func (p *Proxy) BlackholeOneWay(d Direction) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.gates[d].close()
}

// Delay makes everything take longer by d, each way, until Pass.
func (p *Proxy) Delay(d time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.delay = d
}

// Throttle lets each connection move so many bytes a second each way, until Pass.
func (p *Proxy) Throttle(bytesPerSecond int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.rate = bytesPerSecond
}

// Refuse breaks every new connection at once, until Pass. Those there are stay.
func (p *Proxy) Refuse() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.refuse = true
}

// Limit breaks every new connection beyond so many at a time, until Pass. Those there are stay.
func (p *Proxy) Limit(connections int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.most = connections
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

// CutAfter breaks each connection there is when the server has sent so many more bytes on it, in the middle of a message
// as likely as not.
func (p *Proxy) CutAfter(bytes int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for l := range p.links {
		l.left.Store(int64(max(bytes, 1)))
	}
}

// CutReplyOnce breaks one connection at the moment the server answers what a client sent and match recognised, so that
// the client never learns what came of it. The channel that it returns is closed then. Statements are prepared: what can
// be recognised is the text of a parameter, and "commit". CutReply recognises statements.
func (p *Proxy) CutReplyOnce(match func(clientBytes []byte) bool) (done <-chan struct{}) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.match, p.cut = match, make(chan struct{})
	return p.cut
}

// CutReply breaks one connection at the moment the server answers how the next statement that holds text was committed,
// so that the client never learns it: that statement itself, or, when it is part of a transaction, the transaction's
// COMMIT. An empty text is any commit of a transaction. Prepared statements are known by the text with which they were
// prepared. The channel that it returns is closed at the cut. A later call, and disarm, take the place of an earlier one.
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
	network, address := p.target()
	if address == "" {
		_ = client.Close()
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
