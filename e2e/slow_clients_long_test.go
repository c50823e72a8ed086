//go:build long

package e2e

import (
	"testing"
	"time"
)

// Hundreds of clients send a submission's body byte by byte. The pod closes each connection after the request timeout of 30 s.
func TestSlowRequestBodies(t *testing.T) {
	t.Parallel()
	sendSlowly(t, "POST /jobs HTTP/1.1\r\nHost: HOST\r\nContent-Type: application/json\r\nContent-Length: 1000\r\n\r\n{", 45*time.Second)
}
