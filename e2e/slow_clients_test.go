package e2e

import (
	"net"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/internal/pgtest"
)

// Hundreds of clients send their headers byte by byte (F68). Meanwhile, the pod continues to serve other clients, and its memory use stays
// small. It closes each slow connection after the header timeout of 5 s.
func TestSlowRequestHeaders(t *testing.T) {
	t.Parallel()
	sendSlowly(t, "GET /jobs HTTP/1.1\r\nHost: HOST\r\nX-Slow: ", 15*time.Second)
}

// sendSlowly has clients send start, in which HOST is replaced with the pod's address, and then one byte after another. Each client must be
// cut off within the limit.
func sendSlowly(t *testing.T, start string, limit time.Duration) {
	t.Helper()
	is := is.New(t)
	pod := serve(t, pgtest.URL(t), nil)
	address := strings.TrimPrefix(pod.HTTP, "http://")
	start = strings.ReplaceAll(start, "HOST", address)
	before := resident(t, pod.cmd.Process.Pid)
	const slow = 300
	var clients sync.WaitGroup
	lasted := make([]time.Duration, slow)
	for i := range slow {
		conn, err := net.Dial("tcp", address)
		is.NoErr(err)
		t.Cleanup(func() { _ = conn.Close() })
		clients.Go(func() {
			began := time.Now()
			if _, err := conn.Write([]byte(start)); err != nil {
				return
			}
			go func() {
				for drip := time.NewTicker(500 * time.Millisecond); ; <-drip.C {
					if _, err := conn.Write([]byte(" ")); err != nil {
						drip.Stop()
						return
					}
				}
			}()
			_ = conn.SetReadDeadline(began.Add(50 * time.Second))
			for buffer := make([]byte, 1024); ; {
				if _, err := conn.Read(buffer); err != nil { // the server has closed the connection
					lasted[i] = time.Since(began)
					return
				}
			}
		})
	}
	var took []time.Duration
	for range 100 {
		began := time.Now()
		is.Equal(pod.status("/jobs?limit=1"), http.StatusOK)
		took = append(took, time.Since(began))
	}
	slices.Sort(took)
	if took[98] > 5*time.Second {
		t.Errorf("with %d slow clients the API takes %s", slow, took[98])
	}
	if more := resident(t, pod.cmd.Process.Pid) - before; more > 64<<20 {
		t.Errorf("%d slow clients cost %d bytes of memory", slow, more)
	}
	clients.Wait()
	for i, d := range lasted {
		if d > limit {
			t.Errorf("slow client %d was served for %s", i, d)
		}
	}
}

// resident returns the resident memory of a process in bytes.
func resident(t *testing.T, pid int) int {
	t.Helper()
	text, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/statm")
	if err != nil {
		t.Skipf("the memory of a process is read from /proc: %v", err)
	}
	pages, err := strconv.Atoi(strings.Fields(string(text))[1])
	if err != nil {
		t.Fatal(err)
	}
	return pages * os.Getpagesize()
}
