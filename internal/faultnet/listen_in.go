package faultnet

import "net"

// ListenIn returns conn with heard called for the text of every statement that is executed over it, in order. This
// includes pings, which no driver's tracer sees. It does not work on an encrypted connection.
func ListenIn(conn net.Conn, heard func(sql string)) net.Conn {
	return &overheard{Conn: conn, heard: heard}
}

type overheard struct {
	net.Conn
	wire  wire
	heard func(sql string)
}

// Write implements [net.Conn]. A connection is written by one goroutine at a time.
func (o *overheard) Write(b []byte) (int, error) {
	n, err := o.Conn.Write(b)
	for _, sql := range o.wire.read(b[:n]) {
		o.heard(sql)
	}
	return n, err
}
