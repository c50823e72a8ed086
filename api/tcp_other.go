//go:build !linux

package api

import (
	"net"
	"time"
)

// answerWithin does nothing, because TCP_USER_TIMEOUT exists only on Linux. Elsewhere, a vanished client is detected when the kernel stops
// retransmitting.
func answerWithin(*net.TCPConn, time.Duration) {}
