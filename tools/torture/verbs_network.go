package torture

import (
	"math/rand/v2"
	"strings"
	"sync"
	"time"

	"github.com/trapeze-run/trapeze/internal/faultnet"
	"github.com/trapeze-run/trapeze/job"
	"github.com/trapeze-run/trapeze/tools/torture/history"
)

// networkInjectors disturb the network between a pod and PostgreSQL.
var networkInjectors = []injector{
	{name: "blackhole", fault: "F23", weight: .03, aim: atPod, shortest: time.Second, longest: 3 * leaseDuration, do: through((*faultnet.Proxy).Blackhole)},
	{name: "one_way", fault: "F23", weight: .02, aim: atPod, shortest: time.Second, longest: 2 * leaseDuration, note: direction, do: oneWay},
	{name: "half_open", fault: "F23", weight: .02, aim: atPod, shortest: time.Second, longest: 2 * leaseDuration, do: halfOpen},
	{name: "reset", fault: "F23", weight: .02, aim: atPod, few: 1, many: 10, shortest: time.Second, longest: 3 * time.Second, do: resets},
	{name: "delay", fault: "F23", weight: .015, aim: atPod, few: 20, many: 1500, shortest: 2 * time.Second, longest: 8 * time.Second, do: delay},
	{name: "throttle", fault: "F23", weight: .01, aim: atPod, few: 500, many: 20000, shortest: 2 * time.Second, longest: 8 * time.Second, do: throttle},
	{name: "cut_bytes", fault: "F23", weight: .02, aim: atPod, few: 1, many: 3000, shortest: time.Second, longest: 3 * time.Second, do: cutBytes},
	{name: "refuse", fault: "F23", weight: .01, aim: atPod, shortest: time.Second, longest: 2 * leaseDuration, do: refuse},
	{name: "limit", fault: "F23", weight: .01, aim: atPod, few: 1, many: 4, shortest: 2 * time.Second, longest: 2 * leaseDuration, do: limit},
	{name: "swizzle", fault: "F23", weight: .02, aim: atAll, shortest: 4 * time.Second, longest: 10 * time.Second, note: swizzleOrder, do: swizzle},
	{name: "cut_claim", fault: "F24", weight: .03, aim: atPod, few: 1, many: 5, shortest: 2 * time.Second, longest: 6 * time.Second, do: cutClaims},
	{name: "cut_finish", fault: "F24", weight: .05, aim: atPod, few: 1, many: 8, shortest: 2 * time.Second, longest: 6 * time.Second, do: cutFinishes},
	{name: "cut_submit", fault: "F24", weight: .03, aim: atPod, few: 1, many: 5, shortest: 2 * time.Second, longest: 6 * time.Second, do: cutReplies(submitText)},
	{name: "cut_cancel", fault: "F24", weight: .02, aim: atPod, few: 1, many: 3, shortest: 2 * time.Second, longest: 6 * time.Second, do: cutCancels},
	{name: "cut_commit", fault: "F24", weight: .06, aim: atPod, few: 1, many: 5, shortest: 2 * time.Second, longest: 6 * time.Second, do: cutReplies("")},
}

// These strings identify the statements for claims, submissions and finishes.
const (
	claimText  = "'job.claimed' from claimed"
	submitText = "select n.requires_approval from trapeze.lanes n"
	finishText = "'job.succeeded'"
)

// through returns a function that applies do to a pod's network while the fault lasts. Each existing connection counts as a hit.
func through(do func(*faultnet.Proxy)) func(*injection) error {
	return func(s *injection) error {
		p := s.pod.Proxy()
		s.hit(p.Links())
		do(p)
		defer p.Pass()
		s.waitPlanned()
		return nil
	}
}

func direction(r *rand.Rand, a *history.Act, _ int) {
	a.Note["towards"] = []string{"server", "pod"}[r.IntN(2)]
}

func oneWay(s *injection) error {
	way := faultnet.ToServer
	if s.act.Note["towards"] == "pod" {
		way = faultnet.ToClient
	}
	return through(func(p *faultnet.Proxy) { p.BlackholeOneWay(way) })(s)
}

// halfOpen silences all existing connections, while new ones still work. It finally resets all connections, as if a router had rebooted.
func halfOpen(s *injection) error {
	p := s.pod.Proxy()
	s.hit(p.Links())
	p.Stall()
	defer p.Reset()
	s.waitPlanned()
	return nil
}

// resets repeatedly resets all connections.
func resets(s *injection) error {
	for range s.act.Number {
		s.hit(s.pod.Proxy().Links())
		s.pod.Proxy().Reset()
		if !s.wait(s.act.For / time.Duration(s.act.Number)) {
			break
		}
	}
	return nil
}

func delay(s *injection) error {
	return through(func(p *faultnet.Proxy) { p.Delay(time.Duration(s.act.Number) * time.Millisecond) })(s)
}

func throttle(s *injection) error {
	return through(func(p *faultnet.Proxy) { p.Throttle(s.act.Number) })(s)
}

func cutBytes(s *injection) error {
	return through(func(p *faultnet.Proxy) { p.CutAfter(s.act.Number) })(s)
}

// refuse resets the existing connections and refuses new ones.
func refuse(s *injection) error {
	return through(func(p *faultnet.Proxy) { p.Refuse(); p.Reset() })(s)
}

// limit restricts the number of connections that a pod can hold open.
func limit(s *injection) error {
	return through(func(p *faultnet.Proxy) { p.Limit(s.act.Number); p.Reset() })(s)
}

// cutReplies returns a function that cuts, one at a time, the replies to committed statements that contain the given text.
func cutReplies(text string) func(*injection) error {
	return func(s *injection) error {
		deadline := time.After(s.act.For)
		for range s.act.Number {
			cut, disarm := s.pod.Proxy().CutReply(text)
			select {
			case <-cut:
				s.hit(1)
				s.wait(s.act.For / time.Duration(2*s.act.Number)) // otherwise, the retries of a single statement would use up all cuts
			case <-deadline:
				disarm()
				return nil
			case <-s.ctx.Done():
				disarm()
				return nil
			}
		}
		return nil
	}
}

// cutClaims cuts the replies to claims. Meanwhile, it submits more jobs to another pod than that pod can run, so that claims find jobs.
func cutClaims(s *injection) error {
	end := s.beside(s.other(), 3*podSlots, 200*time.Millisecond, simple("demo.sleep", `{"ms":100}`))
	defer end()
	return cutReplies(claimText)(s)
}

// cutFinishes cuts the replies to finishes. It submits chains to the pod, so that most finishes start the next step.
func cutFinishes(s *injection) error {
	chain := simple("demo.sleep", `{"ms":20}`)
	for range 4 {
		chain.Chain = append(chain.Chain, job.Step{Kind: chain.Kind, Args: chain.Args})
	}
	end := s.beside(s.pod, 2, 150*time.Millisecond, chain)
	defer end()
	return cutReplies(finishText)(s)
}

// beside keeps submitting batches of jobs to a pod until end is called.
func (s *injection) beside(pod *Pod, many int, apart time.Duration, what submission) (end func()) {
	ended := make(chan struct{})
	var giving sync.WaitGroup
	giving.Go(func() {
		for pod != nil {
			for range many {
				select {
				case <-ended:
					return
				default:
					s.crowd.submit(s.ctx, 0, pod, what)
				}
			}
			if !s.wait(apart) {
				return
			}
		}
	})
	return func() { close(ended); giving.Wait() }
}

// other returns a running pod other than the target, or nil if there is none.
func (s *injection) other() *Pod {
	for i := range s.w.Pods() {
		if p, ok := s.crowd.pod(s.act.No + i); ok && p != s.pod {
			return p
		}
	}
	return nil
}

// cutCancels cuts the replies to cancels. It sends cancels itself, because clients rarely do.
func cutCancels(s *injection) error {
	if err := s.alive(); err != nil {
		return err
	}
	var cancelling sync.WaitGroup
	defer cancelling.Wait()
	ended := make(chan struct{})
	defer close(ended)
	cancelling.Go(func() {
		for _, verb := range []string{"cancel", "stop", "cancel", "stop", "cancel", "cancel"} {
			call := s.submit(s.pod, simple("demo.sleep", `{"ms":1500}`))
			select {
			case <-ended:
				return
			default:
			}
			if call.Job != 0 {
				s.crowd.end(s.ctx, 0, s.pod, verb, call.Job)
			}
		}
	})
	return cutReplies("select id from trapeze.live where id = $1 for update")(s)
}

// swizzleOrder picks the orders in which pods are cut off and reconnected.
func swizzleOrder(r *rand.Rand, a *history.Act, pods int) {
	for _, what := range []string{"cut", "heal"} {
		var names []string
		for _, i := range r.Perm(pods) {
			names = append(names, podName(i))
		}
		a.Note[what] = strings.Join(names, " ")
	}
}

// swizzle cuts off the pods one by one and reconnects them in a different order.
func swizzle(s *injection) error {
	pods := map[string]*Pod{}
	for _, p := range s.w.Pods() {
		pods[p.Name()] = p
	}
	each := s.act.For / time.Duration(2*len(pods))
	defer func() {
		for _, p := range pods {
			p.Proxy().Pass()
		}
	}()
	for _, what := range []string{"cut", "heal"} {
		order, _ := s.act.Note[what].(string)
		for name := range strings.FieldsSeq(order) {
			p := pods[name]
			if p == nil {
				continue
			}
			if what == "cut" {
				s.hit(p.Proxy().Links())
				p.Proxy().Blackhole()
			} else {
				p.Proxy().Pass()
			}
			if !s.wait(each) {
				return nil
			}
		}
	}
	return nil
}
