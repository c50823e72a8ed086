//go:build failpoints

package faults

import (
	"go/ast"
	"go/parser"
	"go/token"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/internal/failpoint"
	"github.com/trapeze-run/trapeze/internal/pgtest"
)

// passing maps failpoints to the pass that triggers the fault. All other failpoints trigger it on the third pass.
var passing = map[string]int{failpoint.EnqueueDone: 2, failpoint.RecoverPage: 1}

func TestDeathAtEachFailpoint(t *testing.T) {
	for _, point := range allPoints(t) {
		if point == failpoint.FireCommit {
			continue // covered by TestPodDeathBeforeOccurrenceCommit
		}
		t.Run(point, func(t *testing.T) {
			t.Parallel()
			is := is.New(t)
			w, armed := reachFailpoint(t, point, "kill")
			armed.waitKilled(t)
			if point == failpoint.RecoverPage {
				w.start(podConfig{Name: "other"}, "")
			}
			armed.waitLapsed()
			w.finish()
			is.True(armed.log.says("failpoint " + point + ": kill")) // the pod died at the failpoint
		})
	}
}

func TestPodFrozenAtFailpoint(t *testing.T) {
	for _, point := range []string{failpoint.ClaimSend, failpoint.ClaimCommitted, failpoint.Launch, failpoint.Handled,
		failpoint.FlushSend, failpoint.FinishCommitted, failpoint.InTxCommit, failpoint.CheckpointDone, failpoint.HeartbeatSend} {
		t.Run(point, func(t *testing.T) {
			t.Parallel()
			is := is.New(t)
			w, frozen := reachFailpoint(t, point, "stop")
			pgtest.Wait(t, "the pod stops", func() bool { return frozen.log.says("failpoint " + point + ": stop") })
			frozen.waitLapsed()
			before := w.ended()
			w.round(0)
			w.round(1)
			pgtest.Wait(t, "the other one works", func() bool { return w.ended() > before+10 })
			frozen.signal(syscall.SIGCONT)
			frozen.waitOpen() // the pod registered again under a new pod ID
			w.finish()
			is.True(frozen.log.says("lease lost: the pod lapsed")) // the pod noticed that its lease was lost
			is.True(w.yes("select count(*) = 2 from trapeze.pods where name = 'armed'"))
		})
	}
}

// If no process admits the next job of a subject after an end, the polls do.
func TestSubjectsAdmittedByPolls(t *testing.T) {
	t.Parallel()
	w := newWorld(t, pgtest.URL(t))
	for _, name := range []string{"a", "b"} {
		w.start(podConfig{Name: name}, failpoint.Admit+"=error@0")
	}
	for n := range 6 {
		w.round(n)
	}
	w.finish()
	for _, p := range w.pods {
		if !p.log.says("failpoint " + failpoint.Admit + ": error") {
			t.Errorf("%s never passed the failpoint", p.name)
		}
	}
}

// reachFailpoint starts one pod with the failpoint enabled and one without, and submits work until the failpoint has been reached.
func reachFailpoint(t *testing.T, point, action string) (*world, *pod) {
	t.Helper()
	at := 3
	if n := passing[point]; n > 0 {
		at = n
	}
	w := newWorld(t, pgtest.URL(t))
	arms := point + "=" + action + "@" + strconv.Itoa(at)
	config := podConfig{Name: "armed"}
	switch point {
	case failpoint.RecoverPage:
		// A pod recovers jobs only after another pod has died.
		victim := w.start(podConfig{Name: "victim"}, "")
		for range 6 {
			w.submit(nap{Millis: 60_000, Once: true})
		}
		victim.waitRunning(6)
		armed := w.start(config, arms)
		victim.kill()
		return w, armed
	case failpoint.EnqueueDone:
		config.SubmitFor = time.Minute
	}
	w.start(podConfig{Name: "other", Slots: 4}, "")
	armed := w.launch(config, arms)
	reached := func() bool { return armed.log.says("failpoint " + point) }
	for n, end := 0, time.Now().Add(20*time.Second); !reached(); n++ {
		if time.Now().After(end) {
			t.Fatalf("failpoint %s was never reached", point)
		}
		w.round(n)
		_ = pause(t.Context(), 100)
	}
	return w, armed
}

// allPoints reads the failpoints from the source, so that this test cannot miss one.
func allPoints(t *testing.T) (points []string) {
	t.Helper()
	file, err := parser.ParseFile(token.NewFileSet(), "../../internal/failpoint/failpoint.go", nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	ast.Inspect(file, func(n ast.Node) bool {
		if value, ok := n.(*ast.BasicLit); ok && value.Kind == token.STRING {
			point, err := strconv.Unquote(value.Value)
			if err != nil {
				t.Fatal(err)
			}
			points = append(points, point)
		}
		return true
	})
	if len(points) < 11 {
		t.Fatalf("only %d failpoints were found", len(points))
	}
	return points
}

// waitKilled waits until the process has died from SIGKILL.
func (p *pod) waitKilled(t *testing.T) {
	t.Helper()
	state := p.waitExit(t, 20*time.Second)
	status, ok := state.Sys().(syscall.WaitStatus)
	if !ok || !status.Signaled() || status.Signal() != syscall.SIGKILL {
		t.Fatalf("%s was not ended by SIGKILL: %s", p.name, state)
	}
}
