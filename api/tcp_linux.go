package api

import (
	"net"
	"syscall"
	"time"
)

// tcpUserTimeout is the TCP_USER_TIMEOUT option of tcp(7), which package syscall does not define.
const tcpUserTimeout = 18

// answerWithin makes the kernel close a connection whose peer does not acknowledge sent data before the limit.
func answerWithin(c *net.TCPConn, limit time.Duration) {
	raw, err := c.SyscallConn()
	if err != nil {
		return
	}
	_ = raw.Control(func(fd uintptr) {
		_ = syscall.SetsockoptInt(int(fd), syscall.IPPROTO_TCP, tcpUserTimeout, int(limit.Milliseconds()))
	})
}
