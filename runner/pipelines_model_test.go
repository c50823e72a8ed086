package runner_test

import (
	"encoding/json"
	"fmt"

	"pgregory.net/rapid"

	"github.com/trapeze-run/trapeze/job"
	"github.com/trapeze-run/trapeze/runner"
)

// node is the arguments of the one kind of which random pipelines are made: what a job does, and what is to follow it.
type node struct {
	Path     string    `json:"path"`               // its name in the tree
	Later    bool      `json:"later,omitempty"`    // its first run is put off
	Flaky    bool      `json:"flaky,omitempty"`    // its first attempt fails
	End      string    `json:"end"`                // ok, error, permanent or fan
	Then     []*node   `json:"then,omitempty"`     // of ok: the steps that it returns
	Kids     [][]*node `json:"kids,omitempty"`     // of fan: a chain each
	Join     []*node   `json:"join,omitempty"`     // of fan: a chain, or none
	FailFast bool      `json:"failFast,omitempty"` // of fan
	InTx     bool      `json:"inTx,omitempty"`     // it has writes of its own
	DelayMS  int       `json:"delayMS,omitempty"`  // of a child
	Subject  string    `json:"subject,omitempty"`
	AfterFan bool      `json:"afterFan,omitempty"` // the job before it fanned out: it reads the branches
}

func (node) Kind() string { return "node" }

// chainOf is a declared chain of nodes.
func chainOf(list []*node) job.Args {
	steps := make([]job.Args, len(list))
	for i, n := range list {
		if steps[i] = n; n.Subject != "" {
			steps[i] = runner.Step(n, runner.Subject(n.Subject))
		}
	}
	return runner.Chain(steps[0], steps[1:]...)
}

// forest is some trees, each a chain of nodes.
type forest [][]*node

// GoString is the forest as JSON.
func (f forest) GoString() string {
	text, _ := json.Marshal(f)
	return string(text)
}

// plantable draws a forest.
func plantable(t *rapid.T) (f forest) {
	for i := range rapid.IntRange(1, 6).Draw(t, "trees") {
		g := &grower{t: t, left: 25}
		tree := g.chain(3, 3)
		name(tree, fmt.Sprint(i), false)
		f = append(f, tree)
	}
	return f
}

// grower draws trees of at most so many more nodes.
type grower struct {
	t    *rapid.T
	left int
}

func (g *grower) roll(n int) int        { return rapid.IntRange(0, n-1).Draw(g.t, "roll") }
func (g *grower) oneIn(n int) (is bool) { return g.roll(n) == n-1 } // what is simple is drawn as 0

// chain draws a chain of at least one node; those of it may fan out depth levels deep.
func (g *grower) chain(longest, depth int) (list []*node) {
	for range 1 + g.roll(longest) {
		if g.left--; g.left < 0 && len(list) > 0 {
			break
		}
		list = append(list, g.node(depth))
	}
	return list
}

func (g *grower) node(depth int) *node {
	n := &node{End: "ok", Later: g.oneIn(8), Flaky: g.oneIn(8), InTx: g.oneIn(5), Subject: []string{"", "", "x", "y"}[g.roll(4)]}
	switch pick := g.roll(12); {
	case pick == 6:
		n.End = "error"
	case pick == 7:
		n.End = "permanent"
	case pick > 7 && depth > 0 && g.left > 0:
		n.End, n.FailFast = "fan", g.oneIn(3)
		for range g.roll(5) {
			kid := g.chain(2, depth-1)
			kid[0].DelayMS = max(0, g.roll(16)-10)
			n.Kids = append(n.Kids, kid)
		}
		if g.roll(3) > 0 {
			n.Join = g.chain(2, depth-1)
		}
	case pick == 5 && g.left > 0:
		n.Then = g.chain(2, depth)
	}
	return n
}

// name gives the nodes of a chain their paths, and tells those that follow a fan-out. after says that the job before is one, and
// name returns it of the job that comes after the chain.
func name(list []*node, prefix string, after bool) bool {
	for i, n := range list {
		n.Path, n.AfterFan = fmt.Sprint(prefix, ".", i), after
		after = n.End == "fan"
		for k, kid := range n.Kids {
			name(kid, fmt.Sprint(n.Path, "/", k+1), false)
		}
		after = name(n.Then, n.Path+"t", name(n.Join, n.Path+"j", after))
	}
	return after
}

// fate is what the model says of a job.
type fate struct {
	state   job.State
	outcome job.OutcomeStatus
	reason  job.Reason
	message string   // empty: any
	starts  int      // of its handler
	sees    []string // of the branches before it
	doomed  bool     // a sibling fails fast: it may also be cancelled, or never come to be
}

// came is what a chain comes to.
type came struct {
	last     string // the path of its last job
	ends     fate
	impaired bool
}

// model is what becomes of pipelines, by the paths of their jobs. It knows nothing of rows, counters or pods: a job that fans out
// comes to what its branches come to.
type model struct {
	fates map[string]fate
	fast  map[string][]string // what fails fast: one of these at least has failed
}

func newModel() *model { return &model{fates: map[string]fate{}, fast: map[string][]string{}} }

func (m *model) chain(list []*node) (c came) {
	for sees := []string(nil); len(list) > 0; {
		n := list[0]
		f := fate{state: job.Succeeded, outcome: job.OK, reason: job.ReasonOK, starts: 1, sees: sees}
		list, sees = append(append([]*node(nil), n.Then...), list[1:]...), nil
		if n.Flaky || n.End == "error" {
			f.starts++
		}
		if n.Later {
			f.starts++
		}
		switch n.End {
		case "error":
			f.state, f.outcome, f.reason = job.Failed, job.Error, job.ReasonAttemptsExhausted
		case "permanent":
			f.state, f.outcome, f.reason = job.Failed, job.Error, job.ReasonError
		case "fan":
			sees = m.fan(n, &f)
			list = append(append([]*node(nil), n.Join...), list...)
		}
		m.fates[n.Path] = f
		c = came{last: n.Path, ends: f, impaired: c.impaired || f.outcome == job.Warning}
		if f.state != job.Succeeded {
			break
		}
	}
	return c
}

// fan adds what becomes of a job because of its branches, and of these. It returns what the next job sees of them.
func (m *model) fan(n *node, f *fate) (sees []string) {
	inner := newModel()
	var bad []string
	harmed := 0
	for i, kid := range n.Kids {
		c := inner.chain(kid)
		result := ""
		switch {
		case c.ends.state != job.Succeeded:
			bad = append(bad, c.last)
		case c.impaired:
			harmed++
			fallthrough
		default:
			result = c.last
		}
		sees = append(sees, saw(i+1, c.ends.state, c.ends.outcome, c.ends.reason, result))
	}
	if len(bad)+harmed > 0 {
		f.outcome, f.reason = job.Warning, job.ReasonChildrenFailed
		f.message = fmt.Sprintf("%d of %d children failed", len(bad), len(n.Kids))
		if harmed > 0 {
			f.message += fmt.Sprintf(", %d in part", harmed)
		}
	}
	race := n.FailFast && len(bad) > 0
	if race || len(bad) == len(n.Kids) && len(bad) > 0 {
		f.state, f.outcome = job.Failed, job.Error
	}
	if race {
		f.message = ""
		m.fast[n.Path] = bad
	}
	for path, of := range inner.fates {
		of.doomed = of.doomed || race
		m.fates[path] = of
	}
	for path, list := range inner.fast {
		m.fast[path] = list
	}
	return sees
}

// status is that of a pipeline which comes to c.
func (c came) status() string {
	switch {
	case c.ends.state != job.Succeeded:
		return string(c.ends.state)
	case c.impaired:
		return "partial"
	}
	return "succeeded"
}

// saw is a branch as a join tells of it.
func saw(no int, state job.State, outcome job.OutcomeStatus, reason job.Reason, result string) string {
	return fmt.Sprintf("%d %s %s %s %s", no, state, outcome, reason, result)
}
