package torture

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/trapeze-run/trapeze/tools/torture/history"
)

// jobInjectors submit jobs that are faults in themselves, or act as faulty clients.
var jobInjectors = []injector{
	{name: "panics", fault: "F9", weight: .015, few: 1, many: 5, do: submits(`demo.panic {"where":"handler"}`)},
	{name: "panics_beside", fault: "F9", weight: .01, shortest: 4 * time.Second, longest: 10 * time.Second, do: endless(`demo.panic {"where":"goroutine"}`)},
	{name: "exits", fault: "F10", weight: .015, shortest: 4 * time.Second, longest: 10 * time.Second, do: endless(`demo.exit {"code":3}`)},
	// Each crash takes a lease duration, a restart and a poll interval, so twenty crashes take a while.
	{name: "exits_to_the_end", fault: "F10", weight: .02, most: 1, room: 4 * time.Minute, do: submits(`demo.exit {"code":4}`)},
	{name: "goexits", fault: "F11", weight: .01, few: 1, many: 5, do: submits(`demo.goexit {}`)},
	{name: "spins", fault: "F12", weight: .01, few: 1, many: 3, do: submits(`demo.spin {"ms":4000}`)},
	{name: "blocks", fault: "F12", weight: .01, most: 3, shortest: time.Second, longest: 5 * time.Second, do: endless(`demo.block {}`)},
	{name: "leaks", fault: "F13", weight: .01, most: 3, few: 1, many: 3, do: submits(`demo.leak {"n":50}`)},
	{name: "hogs", fault: "F14", weight: .015, aim: atPod, shortest: 3 * time.Second, longest: 6 * time.Second, do: hogs},
	{name: "unknown_kind", fault: "F15", weight: .01, few: 1, many: 3, do: submits(`demo.stranger {}`)},
	{name: "fewer_kinds", fault: "F15", weight: .015, aim: atPod, shortest: 4 * time.Second, longest: 10 * time.Second, do: fewerKinds},
	{name: "other_args", fault: "F16", weight: .01, few: 1, many: 4, do: submits(`demo.sleep {"ms":"soon"}`, `demo.sleep {"ms":5,"mood":"new"}`, `demo.tx {"rows":[1]}`, `demo.effect [3]`)},
	{name: "gone_clients", fault: "F25", weight: .02, few: 3, many: 20, shortest: time.Second, longest: 3 * time.Second, do: goneClients},
	{name: "same_key", fault: "F49", weight: .02, few: 10, many: 60, do: sameKey},
	{name: "same_unique_key", fault: "F49", weight: .01, few: 10, many: 40, do: sameUniqueKey},
}

// submit submits a job on behalf of the nemesis. It counts a hit unless the job was rejected.
func (s *injection) submit(pod *Pod, what submission) history.Call {
	call := s.crowd.submit(s.ctx, 0, pod, what)
	if call.Outcome != history.Refused {
		s.hit(1)
	}
	return call
}

// jobOf builds a submission from a kind and its args.
func jobOf(text string) submission {
	kind, args, _ := strings.Cut(text, " ")
	return submission{Kind: kind, Args: json.RawMessage(args)}
}

// submits returns a function that submits the given jobs in turn. It submits as many jobs as the plan specifies, but each job at least
// once.
func submits(jobs ...string) func(*injection) error {
	return func(s *injection) error {
		for i := range max(s.act.Number, len(jobs)) {
			pod, ok := s.crowd.pod(s.act.No + i)
			if !ok {
				return ErrNoProcess
			}
			call := s.submit(pod, jobOf(jobs[i%len(jobs)]))
			if call.Outcome == history.Refused && call.Code != unsent {
				s.hit(1) // the purpose of this job is to be rejected
			}
		}
		return nil
	}
}

// endless returns a function that submits a job that never ends on its own, and stops the job when the fault is over. It repeats the
// submission until the outcome is known, because a job whose ID is unknown cannot be stopped.
func endless(text string) func(*injection) error {
	return func(s *injection) error {
		what := jobOf(text)
		what.key = fmt.Sprint("act ", s.act.No)
		ctx, cancel := s.healing()
		defer cancel()
		var id int64
		for try := 0; id == 0; try++ {
			if pod, ok := s.crowd.pod(s.act.No + try); ok {
				call := s.crowd.submit(ctx, 0, pod, what)
				if id = call.Job; try == 0 && call.Outcome == history.Refused {
					return errors.New("the submission was refused: " + call.Code)
				}
			}
			if id == 0 && !sleep(ctx, 200*time.Millisecond) {
				return errors.New("the outcome of the submission is not known")
			}
		}
		s.hit(1)
		s.note("jobs", texts([]int64{id}))
		s.waitPlanned()
		return s.stop(id)
	}
}

// stop stops a job and retries until it succeeds.
func (s *injection) stop(id int64) error {
	ctx, cancel := s.healing()
	defer cancel()
	for try := 0; ; try++ {
		if pod, ok := s.crowd.pod(s.act.No + try); ok {
			call := s.crowd.end(ctx, 0, pod, "stop", id)
			if call.Outcome == history.OK || call.Status == http.StatusConflict || call.Status == http.StatusNotFound {
				return nil
			}
		}
		if !sleep(ctx, 200*time.Millisecond) {
			return fmt.Errorf("job %d could not be stopped within %s", id, undoWithin)
		}
	}
}

// hogs limits a pod's memory to little more than its current usage and gives it a job that needs more. The pod dies as if the kernel had
// killed it.
func hogs(s *injection) (err error) {
	if err := s.alive(); err != nil {
		return err
	}
	pid := s.pod.PID()
	size, err := addressSpace(pid)
	if err != nil {
		return err
	}
	const room, wanted = 128, 400 // MiB
	if err := limitMemory(pid, fmt.Sprint(size+room<<20)); err != nil {
		return err
	}
	defer func() {
		if s.pod.PID() == pid {
			err = limitMemory(pid, "unlimited") // otherwise, the pod would die later for no recorded reason
		}
	}()
	call := s.submit(s.pod, simple("demo.hog", `{"mb":%d}`, wanted))
	if call.Job != 0 {
		s.note("jobs", texts([]int64{call.Job}))
	}
	s.until(s.act.For, func() bool { return s.pod.PID() != pid })
	return nil
}

// addressSpace returns the size of a process's address space in bytes, whether resident or not.
func addressSpace(pid int) (int64, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/statm", pid))
	if err != nil {
		return 0, err
	}
	var pages int64
	_, err = fmt.Sscan(string(text), &pages)
	return pages * int64(os.Getpagesize()), err
}

// limitMemory sets the soft limit on the address space of a running process. Raising the limit again requires no privileges.
func limitMemory(pid int, bytes string) error {
	if out, err := exec.Command("prlimit", fmt.Sprint("--pid=", pid), "--as="+bytes+":").CombinedOutput(); err != nil {
		return fmt.Errorf("prlimit: %w: %s", err, strings.TrimSpace(string(out)))
	}
	return nil
}

// fewerKinds restarts the pod with only some kinds. When the fault is over, it restarts the pod with all kinds.
func fewerKinds(s *injection) error {
	if err := s.alive(); err != nil {
		return err
	}
	release := s.pod.HoldDown()
	defer release()
	defer func() { _ = s.pod.Signal(syscall.SIGTERM) }()
	if err := s.term(); err != nil {
		return err
	}
	if err := s.gone(); err != nil {
		return err
	}
	starting, cancel := context.WithTimeout(s.ctx, undoWithin)
	defer cancel()
	if err := s.pod.Start(starting, "TRAPEZE_KINDS=demo.noop,demo.chain,demo.sleep"); err != nil {
		return s.unlessOver(err)
	}
	s.waitPlanned()
	return nil
}

// goneClients simulates clients that submit or cancel a job and disconnect after a few milliseconds.
func goneClients(s *injection) error {
	patience := func(i int) time.Duration { return time.Duration(i%7) * 700 * time.Microsecond }
	for i := range s.act.Number {
		pod, ok := s.crowd.pod(s.act.No + i)
		if !ok {
			return ErrNoProcess
		}
		what := simple("demo.sleep", `{"ms":%d}`, 20*i)
		if i%2 == 0 {
			what.key = fmt.Sprintf("act %d, %d", s.act.No, i)
		}
		leaving, cancel := context.WithTimeout(s.ctx, patience(i))
		call := s.crowd.submit(leaving, 0, pod, what)
		cancel()
		if call.Outcome == history.Unknown {
			s.hit(1)
		}
		if id, ok := s.crowd.pick(.9); ok && i%3 == 0 {
			leaving, cancel := context.WithTimeout(s.ctx, patience(i))
			if s.crowd.end(leaving, 0, pod, "cancel", id).Outcome == history.Unknown {
				s.hit(1)
			}
			cancel()
		}
		if !s.wait(s.act.For / time.Duration(s.act.Number)) {
			break
		}
	}
	return nil
}

// together submits the same job from many clients concurrently, spread over all pods.
func (s *injection) together(what submission) error {
	var submitting sync.WaitGroup
	for i := range s.act.Number {
		submitting.Go(func() {
			if pod, ok := s.crowd.pod(i); ok {
				s.submit(pod, what)
			}
		})
	}
	submitting.Wait()
	return nil
}

func sameKey(s *injection) error {
	what := simple("demo.effect", `{"n":2}`)
	what.key = fmt.Sprint("act ", s.act.No)
	return s.together(what)
}

func sameUniqueKey(s *injection) error {
	what := simple("demo.sleep", `{"ms":300}`)
	what.UniqueKey, what.UniqueWhile = fmt.Sprint("act ", s.act.No), "active"
	return s.together(what)
}
