package torture

import (
	"errors"
	"time"

	"github.com/trapeze-run/trapeze/internal/faultnet"
)

// workerInjectors disturb remote workers, the network between workers and their pods, and the pod that serves a worker.
var workerInjectors = []injector{
	{name: "worker_reset", fault: "F69", weight: .05, aim: atWorker, few: 1, many: 8, shortest: time.Second, longest: 4 * time.Second, do: workerResets},
	{name: "worker_deaf", fault: "F69", weight: .04, aim: atWorker, shortest: time.Second, longest: leaseDuration, do: dropToWorker},
	{name: "worker_cut_bytes", fault: "F69", weight: .03, aim: atWorker, few: 1, many: 2000, shortest: time.Second, longest: 3 * time.Second, do: onItsLinks(func(p *faultnet.Proxy, n int) { p.CutAfter(n) })},
	{name: "worker_freeze", fault: "F70", weight: .08, aim: atWorker, shortest: leaseDuration + pollInterval, longest: 2*leaseDuration + pollInterval, do: workerFreezes},
	{name: "worker_freeze_near_lease", fault: "F70", weight: .03, aim: atWorker, shortest: leaseDuration - 500*time.Millisecond, longest: leaseDuration + 500*time.Millisecond, do: workerFreezes},
	{name: "worker_kill", fault: "F71", weight: .1, aim: atWorker, do: workerKilled},
	{name: "worker_term", fault: "F71", weight: .05, aim: atWorker, shortest: shutdownGrace, longest: shutdownGrace + time.Second, do: workerTerm},
	{name: "worker_blackhole", fault: "F71", weight: .05, aim: atWorker, shortest: time.Second, longest: 2 * leaseDuration, do: onItsLinks(func(p *faultnet.Proxy, _ int) { p.Blackhole() })},
	{name: "worker_delay", fault: "F71", weight: .03, aim: atWorker, few: 20, many: 900, shortest: 2 * time.Second, longest: 6 * time.Second, do: onItsLinks(func(p *faultnet.Proxy, n int) { p.Delay(time.Duration(n) * time.Millisecond) })},
	{name: "worker_moves", fault: "F71", weight: .05, aim: atWorker, few: 0, many: podsPerWorker - 1, shortest: time.Second, longest: 2 * leaseDuration, do: workerMoves},
	{name: "serving_pod_killed", fault: "F71", weight: .06, aim: atWorker, shortest: 2 * time.Second, longest: 4 * time.Second, do: servingPodKilled},
}

// occupy submits jobs that only remote workers run, and chains that move between workers and pods.
func (s *injection) occupy(ms int) {
	far := simple("demo.progress", `{"steps":4,"ms":%d}`, ms/4)
	chain := simple("demo.effect", `{"n":1}`)
	for _, what := range []submission{simple("demo.noop", `{}`), far, simple("demo.tx", `{"rows":1}`), simple("demo.echo", `{"after":"a pod"}`)} {
		chain.Chain = append(chain.Chain, what.step())
	}
	for i, what := range []submission{far, far, far, far, chain, chain} {
		if pod, ok := s.crowd.pod(s.act.No + i); ok {
			s.crowd.submit(s.ctx, 0, pod, what)
		}
	}
}

// busy waits until the worker is ready and then occupies the workers with jobs that run for long enough to be acknowledged. The fault
// begins once busy has returned.
func (s *injection) busy(ms int) error {
	if err := s.alive(); err != nil {
		return err
	}
	s.occupy(ms + int(untilAtIt.Milliseconds()))
	s.wait(untilAtIt)
	s.began = time.Now()
	return nil
}

// untilAtIt is long enough for workers to start their jobs and for their pods to learn of it.
const untilAtIt = 1500 * time.Millisecond

// onItsLinks returns a function that applies do to all connections of a busy worker while the fault lasts.
func onItsLinks(do func(p *faultnet.Proxy, number int)) func(*injection) error {
	return func(s *injection) error {
		if err := s.busy(1500); err != nil {
			return err
		}
		s.hit(s.worker.links())
		for _, way := range s.worker.proxies {
			do(way, s.act.Number)
		}
		defer s.worker.pass()
		s.waitPlanned()
		return nil
	}
}

// workerResets repeatedly resets all of a worker's connections while jobs are being sent to the worker.
func workerResets(s *injection) error {
	if err := s.busy(5000); err != nil {
		return err
	}
	for range s.act.Number {
		s.hit(s.worker.links())
		for _, way := range s.worker.proxies {
			way.Reset()
		}
		if !s.wait(s.act.For / time.Duration(s.act.Number)) {
			break
		}
	}
	return nil
}

// dropToWorker drops everything that is sent to a worker. Everything that the worker sends still arrives.
func dropToWorker(s *injection) error {
	if err := s.alive(); err != nil {
		return err
	}
	s.hit(s.worker.links())
	for _, way := range s.worker.proxies {
		way.BlackholeOneWay(faultnet.ToClient)
	}
	defer s.worker.pass()
	s.occupy(400)
	s.waitPlanned()
	return nil
}

// workerFreezes freezes a worker while it is running handlers that return as soon as the worker resumes. By then, other processes have
// claimed the worker's jobs and are still running some of them. The demo.sleep handlers ignore their contexts, because otherwise they would
// be cancelled before they return. The jobs are submitted directly to the database, so that no pod starts them on insert.
func workerFreezes(s *injection) error {
	for range 2 * podSlots {
		_, _ = s.crowd.announce(s.ctx, simple("demo.sleep", `{"ms":4000,"ignore_ctx":true}`)) // announce records the call
	}
	if err := s.busy(800); err != nil {
		return err
	}
	return s.frozen(s.at, s.waitPlanned)
}

func workerKilled(s *injection) error {
	if err := s.busy(3000); err != nil {
		return err
	}
	return kill(s)
}

// workerTerm shuts down a worker while it is running handlers of various lengths.
func workerTerm(s *injection) error {
	if err := s.busy(6000); err != nil {
		return err
	}
	if err := s.term(); err != nil {
		return err
	}
	return s.gone()
}

// workerMoves cuts one of a worker's connections, so that the worker continues its jobs through another pod.
func workerMoves(s *injection) error {
	if err := s.busy(5000); err != nil {
		return err
	}
	way := s.worker.proxies[s.act.Number%len(s.worker.proxies)]
	s.hit(way.Links())
	way.Refuse()
	way.Reset()
	defer way.Pass()
	s.waitPlanned()
	return nil
}

// servingPodKilled kills the pod that serves the worker's stream.
func servingPodKilled(s *injection) error {
	if err := s.busy(4000); err != nil {
		return err
	}
	pod := s.w.servedBy(s.at.Name())
	if pod == nil {
		return errors.New("no pod serves it")
	}
	s.note("pod", pod.Name())
	if err := pod.Kill(); err != nil {
		return err
	}
	s.hit(1)
	s.waitPlanned()
	return nil
}
