package torture

import (
	"encoding/json"
	"fmt"
	"strings"

	"github.com/trapeze-run/trapeze/job"
)

// simple returns a submission that consists of a kind and its args.
func simple(kind, args string, a ...any) submission {
	return submission{Kind: kind, Args: json.RawMessage(fmt.Sprintf(args, a...))}
}

// step converts the submission to a chain step.
func (s submission) step() job.Step { return job.Step{Kind: s.Kind, Args: s.Args} }

// mix lists the submissions that clients make, with their weights.
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
	{2, func(k *errands) submission { return simple("demo.result", `{"bytes":2000000}`) }}, // larger than can be stored
	{30, func(k *errands) submission {
		return simple("demo.fail", `{"message":"no %d","permanent":%t}`, k.n, k.r.IntN(2) == 0)
	}},
	{8, func(k *errands) submission { return simple("demo.fail", `{"bytes_b64":"/wAg7aCA4pyT"}`) }}, // not valid UTF-8
	{50, func(k *errands) submission {
		s := simple("demo.flaky", `{"p":0.5}`)
		s.MaxAttempts = k.number(1, 5)
		return s
	}},
	{15, func(k *errands) submission { return simple("demo.panic", `{"where":"handler","bytes_b64":"AP8="}`) }},
	{10, func(k *errands) submission { return simple("demo.goexit", `{}`) }},
	{40, func(k *errands) submission { return k.declaredChain() }},
	{40, func(k *errands) submission { return k.carriedChain() }},
	{25, func(k *errands) submission { return k.fanOut() }},
	{1, func(k *errands) submission { return simple("demo.fanout", `{"n":%d}`, k.number(10_001, 2_000_000)) }}, // too many children, so the fan-out is rejected
	{100, func(k *errands) submission {
		s := simple("demo.sleep", `{"ms":%d}`, k.number(10, 300))
		s.Subject = k.subject()
		return s
	}},
	{130, func(k *errands) submission {
		s := simple("demo.sleep", `{"ms":%d}`, k.number(20, 300))
		if s.Lane = limitedLane; k.r.IntN(4) == 0 {
			s.Subject = k.subject()
		}
		return s
	}},
	{25, func(k *errands) submission {
		s := k.declaredChain()
		s.Lane = limitedLane // also applies to steps that name no lane
		return s
	}},
	{100, func(k *errands) submission {
		s := simple("demo.sleep", `{"ms":%d}`, k.number(1, 50))
		s.Lane = ratedLane
		return s
	}},
	{60, func(k *errands) submission {
		s := simple("demo.sleep", `{"ms":%d}`, k.number(5, 300))
		s.Lane = fmt.Sprint(strings.TrimSuffix(tenantLanes, "*"), (k.n/60+k.r.IntN(tenants))%tenantNames)
		return s
	}},
	{60, func(k *errands) submission {
		s := simple("demo.flaky", `{"p":0.5}`)
		if s.MaxAttempts = 6; k.r.IntN(3) == 0 {
			s = simple("demo.snooze", `{"times":%d,"delay_ms":%d}`, k.number(1, 3), k.number(10, 800))
		}
		s.Subject, s.Ordered = fmt.Sprint("ordered ", k.r.IntN(3)), k.r.IntN(4) > 0
		return s
	}},
	{40, func(k *errands) submission {
		s := simple("demo.sleep", `{"ms":%d}`, k.number(5, 500))
		s.UniqueKey = fmt.Sprint("unique ", k.r.IntN(6))
		s.UniqueWhile = []string{"", "pending", "active"}[k.r.IntN(3)]
		return s
	}},
	{30, func(k *errands) submission {
		return simple("demo.snooze", `{"times":%d,"delay_ms":%d}`, k.number(1, 3), k.number(10, 800))
	}},
	{40, func(k *errands) submission {
		return simple("demo.progress", `{"steps":%d,"ms":%d}`, k.number(1, 6), k.number(5, 80))
	}},
	{60, func(k *errands) submission {
		return simple("demo.tx", `{"rows":%d,"rollback":%t}`, k.number(1, 20), k.r.IntN(6) == 0)
	}},
	{80, func(k *errands) submission {
		return simple("demo.batch", `{"rows":%d,"ms":%d,"panic":%t}`, k.number(1, 5), k.number(0, 40), k.r.IntN(10) == 0)
	}},
	{20, func(k *errands) submission {
		children := simple("demo.batch", `{"rows":1,"ms":%d,"panic":%t}`, k.number(0, 40), k.r.IntN(3) == 0)
		return submission{Kind: "demo.fanout", Args: fan{N: k.number(5, 12), Child: children.step()}.args()}
	}},
	{60, func(k *errands) submission { return simple("demo.effect", `{"n":%d}`, k.number(1, 5)) }},
	{3, func(k *errands) submission { return simple("demo.nobody", `{}`) }},               // an unknown kind
	{4, func(k *errands) submission { return simple("demo.sleep", `{"ms":"soon"}`) }},     // args that are invalid for the kind
	{3, func(k *errands) submission { return simple("demo.echo", `{"nul":"a\u0000b"}`) }}, // text that cannot be stored
	{3, func(k *errands) submission { return submission{Kind: "demo.noop", Lane: "no"} }}, // a lane that does not exist
}

// odd lists JSON texts that are easily altered in transit.
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

// step returns a random chain step.
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
		s = simple("demo.flaky", `{"p":0.1}`) // makes a chain fail now and then
	}
	step := job.Step{Kind: s.Kind, Args: s.Args}
	switch k.r.IntN(20) {
	case 0, 1:
		step.Lane = narrowLane
	case 2:
		step.Lane = limitedLane
	}
	if k.r.IntN(8) == 0 {
		subject := k.subject()
		step.Subject = &subject
	}
	if k.r.IntN(8) == 0 {
		key := k.hotKey()
		step.Key = &key
	}
	return step
}

func (k *errands) steps() (steps []job.Step) {
	for range k.number(2, 7) {
		steps = append(steps, k.step())
	}
	return steps
}

// declaredChain returns a chain of 3 to 8 steps that are declared in the submission.
func (k *errands) declaredChain() submission {
	first := k.step()
	s := submission{Kind: first.Kind, Args: first.Args, Lane: first.Lane, Chain: k.steps()}
	if k.r.IntN(2) == 0 {
		s.Subject = k.subject()
	}
	return s
}

// carriedChain returns a chain of 3 to 8 steps that the first job's handler requests. Half of these chains have a compensation, and half of
// those fail.
func (k *errands) carriedChain() submission {
	brings := map[string]any{}
	steps := k.steps()
	if k.r.IntN(2) == 0 {
		brings["undo"] = simple("demo.echo", `{"undo":%d}`, k.n).step()
		if k.r.IntN(2) == 0 {
			steps = append(steps, simple("demo.fail", `{"permanent":true}`).step())
		}
	}
	brings["steps"] = steps
	args, err := json.Marshal(brings)
	if err != nil {
		panic(err) // marshaling strings and numbers cannot fail
	}
	s := submission{Kind: "demo.chain", Args: args}
	if k.r.IntN(2) == 0 {
		s.Subject = k.subject()
	}
	return s
}

// fan contains the arguments for demo.fanout.
type fan struct {
	N      int       `json:"n"`
	Child  job.Step  `json:"child"`
	Join   *job.Step `json:"join,omitempty"`
	Policy string    `json:"policy,omitempty"`
}

// fanOut returns a fan-out with 2 to 50 children. The children are jobs that all end at about the same time, jobs of which some fail,
// chains, or fan-outs with 2 to 4 children. Most fan-outs have a join, and some have a declared step after it.
func (k *errands) fanOut() submission {
	f := fan{N: k.number(2, 12), Child: k.child()}
	switch k.r.IntN(8) {
	case 0:
		f.N = k.number(20, 50)
	case 1, 2:
		inner := fan{N: k.number(2, 4), Child: k.child()}
		if k.r.IntN(2) == 0 {
			inner.Join = &job.Step{Kind: "demo.noop", Args: json.RawMessage(`{}`)}
		}
		f.N, f.Child = min(f.N, 5), job.Step{Kind: "demo.fanout", Args: inner.args()}
	}
	if k.r.IntN(4) > 0 {
		join := k.step()
		f.Join = &join
	}
	if k.r.IntN(3) == 0 {
		f.Policy = "fail_fast"
	}
	s := submission{Kind: "demo.fanout", Args: f.args()}
	if k.r.IntN(4) == 0 {
		s.Chain = k.steps()
	}
	return s
}

func (f fan) args() json.RawMessage {
	args, err := json.Marshal(f)
	if err != nil {
		panic(err) // marshaling strings and numbers cannot fail
	}
	return args
}

// child returns a random child of a fan-out.
func (k *errands) child() job.Step {
	var s submission
	switch k.r.IntN(6) {
	case 0, 1:
		s = simple("demo.noop", `{}`)
	case 2, 3:
		s = simple("demo.sleep", `{"ms":%d}`, k.number(1, 100))
	case 4:
		s = simple("demo.flaky", `{"p":0.2}`)
	case 5:
		s = simple("demo.chain", `{"steps":[{"kind":"demo.noop","args":{}},{"kind":"demo.flaky","args":{"p":0.1}}]}`)
	}
	return job.Step{Kind: s.Kind, Args: s.Args}
}
