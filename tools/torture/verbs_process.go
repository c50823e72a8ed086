package torture

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"syscall"
	"time"

	"github.com/trapeze-run/trapeze/tools/torture/history"
)

// processInjectors disturb the processes of pods. When a process ends, the world starts a new one in its place.
var processInjectors = []injector{
	{name: "kill", fault: "F1", weight: .11, aim: atPod, do: kill},
	{name: "kill_all", fault: "F1", weight: .03, aim: atAll, do: killAll},
	{name: "freeze", fault: "F2", weight: .06, aim: atPod, shortest: leaseDuration + pollInterval, longest: 3 * leaseDuration, do: freeze},
	{name: "freeze_near_lease", fault: "F3", weight: .05, aim: atPod, shortest: leaseDuration - 200*time.Millisecond, longest: leaseDuration + 200*time.Millisecond, do: freeze},
	{name: "freeze_finishing", fault: "F4", weight: .04, aim: atPod, shortest: leaseDuration + pollInterval, longest: 2 * leaseDuration, do: freezeFinishing},
	{name: "term", fault: "F5", weight: .06, aim: atPod, shortest: shutdownGrace, longest: shutdownGrace + time.Second, do: term},
	{name: "term_twice", fault: "F6", weight: .02, aim: atPod, shortest: shutdownGrace, longest: shutdownGrace + time.Second, note: soon, do: termTwice},
	{name: "term_then_kill", fault: "F6", weight: .015, aim: atPod, shortest: time.Second, longest: shutdownGrace, note: soon, do: termThenKill},
	{name: "term_at_start", fault: "F6", weight: .015, aim: atPod, shortest: time.Second, longest: shutdownGrace, note: soon, do: termAtStart},
	{name: "term_in_flush", fault: "F7", weight: .03, aim: atPod, shortest: shutdownGrace, longest: shutdownGrace + time.Second, do: termInFlush},
	{name: "starve", fault: "F8", weight: .03, aim: atPod, shortest: 3 * time.Second, longest: 10 * time.Second, do: starve},
}

// soon picks a time within the first second.
func soon(r *rand.Rand, a *history.Act, _ int) { a.Note["after"] = shortly(r, 1000).String() }

func shortly(r *rand.Rand, milliseconds int) time.Duration {
	return time.Duration(r.IntN(milliseconds)) * time.Millisecond
}

// noteOf reads a duration from the note in the plan.
func (s *injection) noteOf(key string) time.Duration {
	text, _ := s.act.Note[key].(string)
	d, _ := time.ParseDuration(text)
	return d
}

func kill(s *injection) error {
	if err := s.alive(); err != nil {
		return err
	}
	if err := s.at.Kill(); err != nil {
		return err
	}
	s.hit(1)
	return nil
}

// killAll kills all pods simultaneously.
func killAll(s *injection) error {
	var killing sync.WaitGroup
	for _, p := range s.w.Pods() {
		killing.Go(func() {
			if p.Kill() == nil {
				s.hit(1)
			}
		})
	}
	killing.Wait()
	return nil
}

func freeze(s *injection) error {
	if err := s.alive(); err != nil {
		return err
	}
	return s.frozen(s.at, s.waitPlanned)
}

// frozen freezes a process, calls meanwhile, and resumes the process.
func (s *injection) frozen(p *place, meanwhile func()) error {
	if err := p.Signal(syscall.SIGSTOP); err != nil {
		return err
	}
	defer func() { _ = p.Signal(syscall.SIGCONT) }() // fails if the process has been killed
	s.hit(1)
	meanwhile()
	return nil
}

// freezeFinishing freezes a pod while it is running handlers that are ready to return as soon as the pod resumes.
func freezeFinishing(s *injection) error {
	if err := s.alive(); err != nil {
		return err
	}
	for range 4 {
		s.submit(s.pod, simple("demo.sleep", `{"ms":300}`))
	}
	return s.frozen(s.at, s.waitPlanned)
}

func (s *injection) term() error {
	if err := s.alive(); err != nil {
		return err
	}
	if err := s.at.Signal(syscall.SIGTERM); err != nil {
		return err
	}
	s.hit(1)
	return nil
}

// term shuts down a pod while it is running handlers of various lengths.
func term(s *injection) error {
	if err := s.alive(); err != nil {
		return err
	}
	for _, ms := range []int{500, 2000, 6000} {
		s.submit(s.pod, simple("demo.sleep", `{"ms":%d}`, ms))
	}
	if err := s.term(); err != nil {
		return err
	}
	return s.gone()
}

// gone waits until a process that was told to exit has exited.
func (s *injection) gone() error {
	ctx, cancel := context.WithTimeout(s.ctx, 3*shutdownGrace)
	defer cancel()
	if err := s.at.WaitExit(ctx); err != nil && s.ctx.Err() == nil {
		return err
	}
	return nil
}

func termTwice(s *injection) error {
	if err := s.term(); err != nil {
		return err
	}
	s.wait(s.noteOf("after"))
	if err := s.at.Signal(syscall.SIGTERM); err != nil && !errors.Is(err, ErrNoProcess) {
		return err
	}
	return s.gone()
}

func termThenKill(s *injection) error {
	if err := s.term(); err != nil {
		return err
	}
	s.wait(s.noteOf("after"))
	if err := s.at.Kill(); err != nil && !errors.Is(err, ErrNoProcess) {
		return err
	}
	return nil
}

// termAtStart kills a pod and sends SIGTERM to the next process while it is starting.
func termAtStart(s *injection) error {
	if err := s.alive(); err != nil {
		return err
	}
	release := s.pod.HoldDown()
	defer release()
	if err := s.at.Kill(); err != nil {
		return err
	}
	starting, cancel := context.WithTimeout(s.ctx, max(s.noteOf("after")/2, 10*time.Millisecond))
	defer cancel()
	_ = s.pod.Start(starting) // usually fails, because the process is not ready yet
	if err := s.at.Signal(syscall.SIGTERM); err != nil {
		return err
	}
	s.hit(1)
	return s.gone()
}

// termInFlush shuts down a pod while everything that it sends is slow.
func termInFlush(s *injection) error {
	if err := s.alive(); err != nil {
		return err
	}
	for range 4 {
		s.submit(s.pod, simple("demo.sleep", `{"ms":200}`))
	}
	s.pod.Proxy().Delay(time.Second)
	defer s.pod.Proxy().Pass()
	s.wait(150 * time.Millisecond)
	if err := s.term(); err != nil {
		return err
	}
	s.wait(2 * time.Second)
	s.pod.Proxy().Pass()
	return s.gone()
}

// starve limits a pod to a twentieth of its CPU time.
func starve(s *injection) error {
	if err := s.alive(); err != nil {
		return err
	}
	const period = 100 * time.Millisecond
	for end := time.Now().Add(s.act.For); time.Now().Before(end) && s.ctx.Err() == nil; {
		if err := s.frozen(s.at, func() { s.wait(period * 19 / 20) }); err != nil {
			return err
		}
		s.wait(period / 20)
	}
	return nil
}
