package torture

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"time"

	"github.com/trapeze-run/trapeze/internal/torture/history"
	"github.com/trapeze-run/trapeze/job"
)

// The size of the workload: about 30 submissions a second, which with the steps of their chains make 45 jobs.
const (
	clients     = 5
	callsApart  = 160 * time.Millisecond // of one client, on average
	inFlight    = 128                    // calls at the same time, of all clients
	hotSubjects = 12                     // that jobs compete for
)

// errand is one thing that a client does: it submits, or cancels or stops a job that it knows.
type errand struct {
	After  time.Duration // the errand before
	Pod    int           // whom it asks, or the next one that answers
	Submit *submission
	Again  []time.Duration // after which the same is submitted again, with the same key
	End    string          // cancel or stop: one of the known jobs, or, after a while, what it has submitted
	Which  float64         // of the known jobs, see [Crowd.pick]
	Wait   time.Duration   // from the submission's answer to its cancel or stop
}

// errands are what one client does, in order: a function of the seed.
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
	k.dress(&s)
	e.Submit = &s
	if s.key != "" && k.r.IntN(4) == 0 {
		for range 1 + k.r.IntN(3) {
			e.Again = append(e.Again, time.Duration(k.r.IntN(1500))*time.Millisecond)
		}
	}
	return e
}

// kind chooses what is submitted.
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

// dress gives a submission what any may have: a key, a lane, a priority, a moment.
func (k *errands) dress(s *submission) {
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
}

func (k *errands) subject() string { return fmt.Sprint("hot ", k.r.IntN(hotSubjects)) }

// number is one of low to high.
func (k *errands) number(low, high int) int { return low + k.r.IntN(high-low+1) }

func simple(kind, args string, a ...any) submission {
	return submission{Kind: kind, Args: json.RawMessage(fmt.Sprintf(args, a...))}
}

// mix is what clients submit, by weight.
var mix = []struct {
	weight int
	make   func(*errands) submission
}{
	{200, func(k *errands) submission { return simple("demo.sleep", `{"ms":%d}`, k.number(5, 400)) }},
	{35, func(k *errands) submission {
		return simple("demo.sleep", `{"ms":%d,"ticks":%d}`, k.number(2000, 6000), k.number(0, 4))
	}},
	{6, func(k *errands) submission {
		return simple("demo.sleep", `{"ms":%d,"ignore_ctx":true}`, k.number(500, 5000))
	}},
	{140, func(k *errands) submission { return simple("demo.noop", `{}`) }},
	{100, func(k *errands) submission {
		return submission{Kind: "demo.echo", Args: json.RawMessage(odd[k.r.IntN(len(odd))])}
	}},
	{30, func(k *errands) submission { return simple("demo.result", `{"bytes":%d}`, k.number(0, 20000)) }},
	{2, func(k *errands) submission { return simple("demo.result", `{"bytes":2000000}`) }}, // more than can be kept
	{30, func(k *errands) submission {
		return simple("demo.fail", `{"message":"no %d","permanent":%t}`, k.n, k.r.IntN(2) == 0)
	}},
	{8, func(k *errands) submission { return simple("demo.fail", `{"bytes_b64":"/wAg7aCA4pyT"}`) }}, // no text
	{50, func(k *errands) submission {
		s := simple("demo.flaky", `{"p":0.5}`)
		s.MaxAttempts = k.number(1, 5)
		return s
	}},
	{15, func(k *errands) submission { return simple("demo.panic", `{"where":"handler","bytes_b64":"AP8="}`) }},
	{10, func(k *errands) submission { return simple("demo.goexit", `{}`) }},
	{40, func(k *errands) submission { return k.declaredChain() }},
	{40, func(k *errands) submission { return k.carriedChain() }},
	{100, func(k *errands) submission {
		s := simple("demo.sleep", `{"ms":%d}`, k.number(10, 300))
		s.Subject = k.subject()
		return s
	}},
	{40, func(k *errands) submission {
		s := simple("demo.sleep", `{"ms":%d}`, k.number(5, 500))
		s.UniqueKey = fmt.Sprint("unique ", k.r.IntN(6))
		s.UniqueWhile = []string{"", "pending", "active"}[k.r.IntN(3)]
		return s
	}},
	{30, func(k *errands) submission {
		return simple("demo.retry_later", `{"times":%d,"delay_ms":%d}`, k.number(1, 3), k.number(10, 800))
	}},
	{40, func(k *errands) submission {
		return simple("demo.progress", `{"steps":%d,"ms":%d}`, k.number(1, 6), k.number(5, 80))
	}},
	{60, func(k *errands) submission {
		return simple("demo.tx", `{"rows":%d,"rollback":%t}`, k.number(1, 20), k.r.IntN(6) == 0)
	}},
	{60, func(k *errands) submission { return simple("demo.effect", `{"n":%d}`, k.number(1, 5)) }},
	{3, func(k *errands) submission { return simple("demo.nobody", `{}`) }},               // a kind that nobody knows
	{4, func(k *errands) submission { return simple("demo.sleep", `{"ms":"soon"}`) }},     // no args of the kind
	{3, func(k *errands) submission { return simple("demo.echo", `{"nul":"a\u0000b"}`) }}, // cannot be stored
	{3, func(k *errands) submission { return submission{Kind: "demo.noop", Lane: "no"} }}, // no lane
}

// odd are texts of JSON that are easily altered on their way.
var odd = []string{
	`null`, `0`, `"text"`, `[]`, `{}`, `[1,[2,[3,[4,[5,[6,[7,[8]]]]]]]]`,
	`{"ümlaut":"naïve — 日本語 🙂","rtl":"שלום","zero width":"a\u200bb"}`,
	`{"line":"\u2028\u2029","html":"<script>&amp;</script>","quotes":"\"\\\/\b\f\n\r\t"}`,
	`{"big":12345678901234567890123,"small":-0.0000000001,"e":1E+30,"neg":-0}`,
	`{"":"empty key"," ":"space","a.b":{"$ref":"#"},"__proto__":1}`,
	`{"escaped":"\u0041\u00e9\ud83d\ude00"}`,
	`[true,false,null,"","null","0",{"k":[{}]}]`,
	`"` + strings.Repeat("0123456789", 300) + `"`,
}

// step is one of a chain's.
func (k *errands) step() job.Step {
	var s submission
	switch k.r.IntN(10) {
	case 0, 1, 2, 3:
		s = simple("demo.sleep", `{"ms":%d}`, k.number(1, 150))
	case 4, 5:
		s = simple("demo.noop", `{}`)
	case 6:
		s = simple("demo.tx", `{"rows":%d}`, k.number(1, 5))
	case 7:
		s = simple("demo.effect", `{"n":1}`)
	case 8:
		s = simple("demo.echo", `{"step":%d}`, k.n)
	case 9:
		s = simple("demo.flaky", `{"p":0.1}`) // a chain that visibly fails, now and then
	}
	step := job.Step{Kind: s.Kind, Args: s.Args}
	if k.r.IntN(10) == 0 {
		step.Lane = narrowLane
	}
	if k.r.IntN(8) == 0 {
		subject := k.subject()
		step.Subject = &subject
	}
	return step
}

func (k *errands) steps() (steps []job.Step) {
	for range k.number(2, 7) {
		steps = append(steps, k.step())
	}
	return steps
}

// declaredChain is a chain of 3 to 8 that its submission declares.
func (k *errands) declaredChain() submission {
	first := k.step()
	s := submission{Kind: first.Kind, Args: first.Args, Lane: first.Lane, Chain: k.steps()}
	if k.r.IntN(2) == 0 {
		s.Subject = k.subject()
	}
	return s
}

// carriedChain is one of 3 to 8 whose first job brings the others.
func (k *errands) carriedChain() submission {
	args, err := json.Marshal(map[string]any{"steps": k.steps()})
	if err != nil {
		panic(err) // of texts and numbers
	}
	s := submission{Kind: "demo.chain", Args: args}
	if k.r.IntN(2) == 0 {
		s.Subject = k.subject()
	}
	return s
}

// Work lets clients submit, cancel and stop, and an operator change lanes and the gate, until ctx ends and their last
// calls have been answered. In the end the lanes and the gate are open.
func (c *Crowd) Work(ctx context.Context) error {
	o := &operator{c: c, r: rand.New(rand.NewPCG(c.w.Settings.Seed, workloadStream))}
	if err := o.prepare(ctx); err != nil {
		return err
	}
	var working sync.WaitGroup
	working.Go(func() { o.run(ctx) })
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

// run does one errand. A submission with a key whose outcome is not known is repeated, as the key is meant for.
func (c *Crowd) run(ctx context.Context, client int, e errand) {
	pod, ok := c.pod(e.Pod)
	if !ok {
		return
	}
	calling := context.WithoutCancel(ctx) // what was sent is waited for
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
