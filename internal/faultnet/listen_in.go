package faultnet

import "net"

// ListenIn wraps conn and calls heard with the text of every statement executed over it, in order. This includes pings, which a driver's
// tracer does not see. ListenIn does not work with encrypted connections.
func ListenIn(conn net.Conn, heard func(sql string)) net.Conn {
	return &overheard{Conn: conn, heard: heard}
}

type overheard struct {
	net.Conn
	wire  wire
	heard func(sql string)
}

// Write implements [net.Conn]. Only one goroutine writes to a connection at a time.
func (o *overheard) Write(b []byte) (int, error) {
	n, err := o.Conn.Write(b)
	for _, sql := range o.wire.read(b[:n]) {
		o.heard(sql)
	}
	return n, err
}
