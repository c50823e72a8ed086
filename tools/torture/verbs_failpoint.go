package torture

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"strings"
	"syscall"
	"time"

	"github.com/trapeze-run/trapeze/internal/failpoint"
	"github.com/trapeze-run/trapeze/tools/torture/history"
)

// failpointInjectors inject faults exactly between two statements of a pod. The pod is restarted with failpoints enabled.
var failpointInjectors = []injector{
	{name: "kill_at", fault: "F1", weight: .06, aim: atPod, shortest: 6 * time.Second, longest: 12 * time.Second, note: point("kill"), do: killAt},
	{name: "freeze_at", fault: "F2", weight: .03, aim: atPod, shortest: leaseDuration + 6*time.Second, longest: 14 * time.Second, note: point("stop"), do: freezeAt},
	{name: "delay_at", fault: "F3", weight: .02, aim: atPod, shortest: 6 * time.Second, longest: 10 * time.Second, note: delayPoint, do: failAt},
	{name: "error_at", fault: "F24", weight: .015, aim: atPod, shortest: 6 * time.Second, longest: 10 * time.Second, note: errorPoint, do: failAt},
}

// everyPoint lists all failpoints. A failpoint is triggered on a random pass, and many is the highest possible pass.
var everyPoint = []struct {
	name string
	many int
}{
	{failpoint.ClaimSend, 8}, {failpoint.ClaimCommitted, 8}, {failpoint.Launch, 20}, {failpoint.Handled, 20},
	{failpoint.FlushSend, 20}, {failpoint.FinishCommitted, 20}, {failpoint.InTxCommit, 2}, {failpoint.CheckpointDone, 1},
	{failpoint.HeartbeatSend, 4}, {failpoint.RecoverPage, 1}, {failpoint.EnqueueDone, 10}, {failpoint.Admit, 20},
}

// point returns a function that picks a failpoint and makes it perform the action on one of its first passes.
func point(action string) func(*rand.Rand, *history.Act, int) {
	return func(r *rand.Rand, a *history.Act, _ int) {
		p := everyPoint[r.IntN(len(everyPoint))]
		a.Note["failpoints"] = fmt.Sprintf("%s=%s@%d", p.name, action, 1+r.IntN(p.many))
	}
}

// delayPoint picks a failpoint and a delay of about the length of a lease.
func delayPoint(r *rand.Rand, a *history.Act, pods int) {
	point(fmt.Sprintf("delay:%s", leaseDuration-500*time.Millisecond+shortly(r, 2000)))(r, a, pods)
}

// errorPoint picks one of the failpoints that can return an error. The program does not check for errors at the other failpoints.
func errorPoint(r *rand.Rand, a *history.Act, _ int) {
	at := []string{failpoint.InTxCommit, failpoint.CheckpointDone, failpoint.Admit}[r.IntN(3)]
	a.Note["failpoints"] = fmt.Sprintf("%s=error@%d", at, 1+r.IntN(2))
}

// armed restarts the pod with the failpoints enabled, calls do, and then kills the pod, so that the next process starts without failpoints.
func (s *injection) armed(do func() error) error {
	if err := s.alive(); err != nil {
		return err
	}
	release := s.pod.HoldDown()
	defer release()
	if err := s.pod.Kill(); err != nil {
		return err
	}
	list, _ := s.act.Note["failpoints"].(string)
	starting, cancel := context.WithTimeout(s.ctx, 5*time.Second)
	defer cancel()
	// A failpoint may be triggered before the pod is ready. The pod then never becomes ready.
	_ = s.pod.Start(starting, "TRAPEZE_FAILPOINTS="+list)
	defer func() { _ = s.pod.Kill() }() // a failpoint that has not been triggered must not be triggered later
	return do()
}

func killAt(s *injection) error {
	return s.armed(func() error {
		if s.until(s.act.For, func() bool { return s.pod.PID() == 0 }) {
			s.hit(1)
		}
		return nil
	})
}

// freezeAt makes a pod freeze itself and resumes it after its lease has expired.
func freezeAt(s *injection) error {
	return s.armed(func() error {
		if s.until(s.act.For-leaseDuration-pollInterval, func() bool { return stopped(s.pod.PID()) }) {
			s.hit(1)
			s.wait(leaseDuration + pollInterval)
		}
		_ = s.pod.Signal(syscall.SIGCONT)
		s.wait(time.Second) // gives the pod time to discover what happened
		return nil
	})
}

func failAt(s *injection) error {
	return s.armed(func() error {
		s.hit(1)
		s.waitPlanned()
		return nil
	})
}

// stopped reports whether a signal has stopped a process.
func stopped(pid int) bool {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return false
	}
	_, rest, _ := strings.Cut(string(text), ") ")
	return strings.HasPrefix(rest, "T")
}
