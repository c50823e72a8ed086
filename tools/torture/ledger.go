package torture

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/trapeze-run/trapeze/tools/torture/history"
)

// ledger simulates the outside world. It is an HTTP server to which the demo handlers send one line per request, and it numbers all lines
// consecutively. It also acts as a resource that enforces fencing tokens: it refuses an effect whose fence is lower than the highest fence
// that it has seen for the job.
type ledger struct {
	listener net.Listener
	server   *http.Server
	served   sync.WaitGroup
	fail     func(error)

	mu      sync.Mutex // held while a line is numbered and written, so that the file is sorted by number
	lines   *history.Writer
	n       int64
	highest map[int64]int64 // the highest fence seen, by job ID
	refused int
}

// startLedger starts a ledger that writes to the run's folder. If an error prevents the ledger from recording lines, it calls fail.
func startLedger(dir string, fail func(error)) (*ledger, error) {
	lines, err := history.NewWriter(dir, history.LedgerFile)
	if err != nil {
		return nil, err
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, errors.Join(err, lines.Close())
	}
	l := &ledger{listener: listener, fail: fail, lines: lines, highest: map[int64]int64{}}
	l.server = &http.Server{Handler: l, ReadHeaderTimeout: 10 * time.Second}
	l.served.Go(func() {
		if err := l.server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
			fail(fmt.Errorf("ledger: %w", err))
		}
	})
	return l, nil
}

func (l *ledger) url() string { return "http://" + l.listener.Addr().String() + "/ledger" }

// ServeHTTP receives one line.
func (l *ledger) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, 1<<20))
	if err != nil { // the sender died during the request
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	var line history.Line
	if err := json.Unmarshal(body, &line); err != nil {
		l.fail(fmt.Errorf("ledger: %q: %w", body, err))
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	if l.take(&line); line.Refused {
		http.Error(w, "there is a newer claim of this job", http.StatusConflict)
	}
}

// take numbers a line, decides whether to refuse it, and writes it to the file.
func (l *ledger) take(line *history.Line) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.n++
	line.N, line.T = l.n, time.Now()
	line.Refused = line.Event == "effect" && line.Fence < l.highest[line.Job]
	l.highest[line.Job] = max(l.highest[line.Job], line.Fence)
	if line.Refused {
		l.refused++
	}
	if err := l.lines.Write(line); err != nil {
		l.fail(fmt.Errorf("ledger: %w", err))
	}
}

// close shuts the server down immediately. By then, all processes that could send reports have exited.
func (l *ledger) close() error {
	err := l.server.Close()
	l.served.Wait()
	return errors.Join(err, l.lines.Close())
}
