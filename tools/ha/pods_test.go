//go:build ha && linux

package ha

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/trapeze-run/trapeze/internal/pgtest"
)

const (
	pods     = 3
	podSlots = 40
)

// pod is a pod that runs the real program with the default intervals.
type pod struct {
	name   string
	env    []string
	now    *process
	url    atomic.Value // the pod's HTTP address, as a string
	killed bool         // the scenario has killed the pod
}

// startPods starts the pods with the given environment, which contains the database URL, and waits until all of them are ready.
func startPods(t *testing.T, ledger string, env ...string) (all []*pod) {
	t.Helper()
	for n := range pods {
		p := &pod{name: fmt.Sprintf("pod%d", n+1)}
		p.env = append([]string{"TRAPEZE_POD_NAME=" + p.name, "TRAPEZE_HTTP_ADDR=127.0.0.1:0", "TRAPEZE_DEMO_HANDLERS=true",
			"TRAPEZE_LEDGER_URL=" + ledger, "TRAPEZE_LOG_FORMAT=json", fmt.Sprint("TRAPEZE_SLOTS=", podSlots), "TRAPEZE_MAX_ATTEMPTS=1"}, env...)
		p.start(t)
		all = append(all, p)
	}
	for _, p := range all {
		p.ready(t)
	}
	return all
}

func (p *pod) start(t *testing.T) {
	t.Helper()
	p.url.Store("")
	p.now = start(t, p.name, false, p.env, binary, "serve")
}

// ready waits until the pod has printed its ready line.
func (p *pod) ready(t *testing.T) {
	t.Helper()
	pgtest.WaitFor(t, time.Minute, p.name+" is ready", func() bool {
		if !p.now.alive() {
			t.Fatalf("%s ended before it was ready", p.name)
		}
		text, _ := os.ReadFile(p.now.log)
		for line := range bytes.Lines(text) {
			var one struct {
				Ready bool   `json:"ready"`
				HTTP  string `json:"http"`
			}
			if json.Unmarshal(line, &one) == nil && one.Ready {
				p.url.Store(one.HTTP) // after a restart, the last ready line applies
			}
		}
		return p.url.Load() != ""
	})
}

// kill kills the pod without warning, as a power failure would.
func (p *pod) kill() {
	p.killed = true
	p.now.stop(syscall.SIGKILL)
	_ = os.Rename(p.now.log, p.now.log+".killed") // so that the next process starts a new log
}
