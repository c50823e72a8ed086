package faultnet

import "net"

// ListenIn returns conn with heard called for the text of every statement that is executed over it, in order, pings
// included, which no tracer of a driver sees. It understands nothing on a connection that is encrypted.
func ListenIn(conn net.Conn, heard func(sql string)) net.Conn {
	return &overheard{Conn: conn, heard: heard}
}

type overheard struct {
	net.Conn
	wire  wire
	heard func(sql string)
}

// Write implements [net.Conn]. Whoever uses a connection writes to it from one goroutine at a time.
func (o *overheard) Write(b []byte) (int, error) {
	n, err := o.Conn.Write(b)
	for _, sql := range o.wire.read(b[:n]) {
		o.heard(sql)
	}
	return n, err
}
