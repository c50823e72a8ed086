package torture

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/trapeze-run/trapeze/tools/torture/history"
)

// The clients make about 30 submissions per second, which result in about 45 jobs per second because of chains.
const (
	clients     = 5
	callsApart  = 160 * time.Millisecond // average interval between one client's calls
	inFlight    = 128                    // maximum number of concurrent calls, over all clients
	hotSubjects = 12                     // subjects that jobs compete for
	hotKeys     = 4                      // keys whose jobs compete for places
)

// errand is one action of a client: a submission, or a cancel or stop of a known job.
type errand struct {
	After  time.Duration // time since the previous errand
	Pod    int           // the pod to call; if it is not running, the next running pod is called
	Submit *submission
	Again  []time.Duration // delays after which the same submission is repeated with the same key
	End    string          // cancel or stop; applies to a known job or, after a delay, to the submitted job
	Which  float64         // selects a known job; see [Crowd.pick]
	Wait   time.Duration   // time from the response to the submission until the cancel or stop
}

// errands generates one client's actions in order. They depend only on the seed.
type errands struct {
	r      *rand.Rand
	client int
	n      int
}

func newErrands(seed uint64, client int) *errands {
	return &errands{r: rand.New(rand.NewPCG(seed, workloadStream<<32+uint64(client))), client: client}
}

// next returns the next errand.
func (k *errands) next() errand {
	k.n++
	e := errand{After: time.Duration(k.r.ExpFloat64() * float64(callsApart)).Round(time.Microsecond), Pod: k.r.IntN(60)}
	switch chance := k.r.Float64(); {
	case chance < 0.06:
		e.End = "cancel"
	case chance < 0.08:
		e.End = "stop"
	}
	if e.End != "" && k.r.IntN(3) == 0 {
		e.Which = k.r.Float64()
		return e
	}
	e.Wait = time.Duration(k.r.IntN(400)) * time.Millisecond
	s := k.kind()
	k.addOptions(&s)
	e.Submit = &s
	if s.key != "" && k.r.IntN(4) == 0 {
		for range 1 + k.r.IntN(3) {
			e.Again = append(e.Again, time.Duration(k.r.IntN(1500))*time.Millisecond)
		}
	}
	return e
}

// kind picks a submission at random from the mix.
func (k *errands) kind() submission {
	total := 0
	for _, m := range mix {
		total += m.weight
	}
	pick := k.r.IntN(total)
	for _, m := range mix {
		if pick -= m.weight; pick < 0 {
			return m.make(k)
		}
	}
	panic("unreachable")
}

// addOptions adds random options to a submission, such as an idempotency key, a lane, a priority, a delay, a subject or a key.
func (k *errands) addOptions(s *submission) {
	if k.r.IntN(3) == 0 {
		s.key = fmt.Sprintf("%d/%d", k.client, k.n)
	}
	if s.Lane == "" && k.r.IntN(8) == 0 {
		s.Lane = narrowLane
	}
	if k.r.IntN(5) == 0 {
		p := k.r.IntN(201) - 100
		s.Priority = &p
	}
	if k.r.IntN(25) == 0 {
		s.Delay = fmt.Sprintf("%dms", 100+k.r.IntN(8000))
	}
	if s.Subject == "" && k.r.IntN(15) == 0 {
		s.Subject = k.subject()
	}
	if s.Kind != "demo.nobody" { // a job that no pod can run would keep its place
		switch k.r.IntN(10) {
		case 0, 1:
			s.JobKey = k.hotKey()
		case 2:
			s.JobKey = fmt.Sprintf("rare %d/%d", k.client, k.n/3)
		}
	}
}

func (k *errands) hotKey() string { return fmt.Sprint("key ", k.r.IntN(hotKeys)) }

func (k *errands) subject() string { return fmt.Sprint("hot ", k.r.IntN(hotSubjects)) }

// number returns a random number between low and high, inclusive.
func (k *errands) number(low, high int) int { return low + k.r.IntN(high-low+1) }

// Work runs the clients and operators until ctx is cancelled and their last calls have been answered. Clients submit, cancel and stop jobs.
// Operators change lanes, the queue state and schedules, and retry or reprioritize jobs. At the end, the lanes and the queue are open and
// the schedules are active.
func (c *Crowd) Work(ctx context.Context) error {
	o := &operator{c: c, r: rand.New(rand.NewPCG(c.w.Settings.Seed, workloadStream))}
	if err := o.prepare(ctx); err != nil {
		return err
	}
	k := &calendar{c: c, r: rand.New(rand.NewPCG(c.w.Settings.Seed, workloadStream<<16))}
	if err := k.prepare(ctx); err != nil {
		return err
	}
	s := &steward{c: c, r: rand.New(rand.NewPCG(c.w.Settings.Seed, workloadStream<<16+1))}
	var working sync.WaitGroup
	working.Go(func() { o.run(ctx) })
	working.Go(func() { k.run(ctx) })
	working.Go(func() { s.run(ctx) })
	room := make(chan struct{}, inFlight)
	for client := 1; client <= clients; client++ {
		working.Go(func() {
			var calling sync.WaitGroup
			defer calling.Wait()
			for k := newErrands(c.w.Settings.Seed, client); ; {
				e := k.next()
				if !sleep(ctx, e.After) {
					return
				}
				select {
				case room <- struct{}{}:
				case <-ctx.Done():
					return
				}
				calling.Go(func() {
					defer func() { <-room }()
					c.run(ctx, client, e)
				})
			}
		})
	}
	working.Wait()
	return nil
}

// run performs one errand. If the outcome of a submission with a key is unknown, run repeats it, which is what idempotency keys are for.
func (c *Crowd) run(ctx context.Context, client int, e errand) {
	pod, ok := c.pod(e.Pod)
	if !ok {
		return
	}
	calling := context.WithoutCancel(ctx) // once sent, a call waits for its response even if ctx is cancelled
	if e.Submit == nil {
		if id, ok := c.pick(e.Which); ok {
			c.end(calling, client, pod, e.End, id)
		}
		return
	}
	var repeating sync.WaitGroup
	defer repeating.Wait()
	for _, after := range e.Again {
		repeating.Go(func() {
			if pod, ok := c.pod(e.Pod + 1); ok && sleep(ctx, after) {
				c.submit(calling, client, pod, *e.Submit)
			}
		})
	}
	for try := range 5 {
		call := c.submit(calling, client, pod, *e.Submit)
		if pod, ok := c.pod(e.Pod / 2); ok && e.End != "" && call.Job != 0 && sleep(ctx, e.Wait) {
			c.end(calling, client, pod, e.End, call.Job)
		}
		inDoubt := call.Outcome == history.Unknown || call.Code == "unavailable"
		if !inDoubt || e.Submit.key == "" || !sleep(ctx, 200*time.Millisecond) {
			return
		}
		if pod, ok = c.pod(e.Pod + 1 + try); !ok {
			return
		}
	}
}
