package runner_test

import (
	"encoding/json"
	"fmt"

	"pgregory.net/rapid"

	"github.com/trapeze-run/trapeze/job"
	"github.com/trapeze-run/trapeze/runner"
)

// node describes a job of a random pipeline: the behavior of its handler and the steps after it. A job's node is encoded as its arguments.
type node struct {
	Path     string    `json:"path"`               // its position in the tree
	Later    bool      `json:"later,omitempty"`    // its first run is snoozed
	Flaky    bool      `json:"flaky,omitempty"`    // its first attempt fails
	End      string    `json:"end"`                // ok, error, permanent or fan
	Then     []*node   `json:"then,omitempty"`     // for ok: the next steps that the handler returns
	Kids     [][]*node `json:"kids,omitempty"`     // for fan: the children, each a chain
	Join     []*node   `json:"join,omitempty"`     // for fan: the join, a chain or nothing
	FailFast bool      `json:"failFast,omitempty"` // for fan
	InTx     bool      `json:"inTx,omitempty"`     // the handler writes in InTx
	DelayMS  int       `json:"delayMS,omitempty"`  // delay of a child
	Subject  string    `json:"subject,omitempty"`
	AfterFan bool      `json:"afterFan,omitempty"` // it follows a fan-out and reads the outcomes of the branches
}

func (node) Kind() string { return "node" }

// chainOf returns a declared chain of nodes.
func chainOf(list []*node) job.Args {
	steps := make([]job.Args, len(list))
	for i, n := range list {
		if steps[i] = n; n.Subject != "" {
			steps[i] = runner.With(n, runner.Subject(n.Subject))
		}
	}
	return runner.Chain(steps[0], steps[1:]...)
}

// forest is a list of trees, each a chain of nodes.
type forest [][]*node

// GoString returns the forest as JSON.
func (f forest) GoString() string {
	text, _ := json.Marshal(f)
	return string(text)
}

// plantable generates a random forest.
func plantable(t *rapid.T) (f forest) {
	for i := range rapid.IntRange(1, 6).Draw(t, "trees") {
		g := &grower{t: t, left: 25}
		tree := g.chain(3, 3)
		name(tree, fmt.Sprint(i), false)
		f = append(f, tree)
	}
	return f
}

// grower generates random trees. left limits how many more nodes it may create.
type grower struct {
	t    *rapid.T
	left int
}

func (g *grower) roll(n int) int        { return rapid.IntRange(0, n-1).Draw(g.t, "roll") }
func (g *grower) oneIn(n int) (is bool) { return g.roll(n) == n-1 } // 0 is the simplest case, so that rapid can shrink toward it

// chain generates a chain of at least one node, with fan-outs nested at most depth levels deep.
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

// name sets the paths of a chain's nodes and marks the nodes that follow a fan-out. after reports whether the job before the chain fanned
// out. name returns the value of after for the job that follows the chain.
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

// prediction is the outcome that the model predicts for a job.
type prediction struct {
	state   job.State
	outcome job.OutcomeStatus
	reason  job.Reason
	message string   // empty for any message
	starts  int      // number of times its handler is called
	sees    []string // outcomes of the preceding branches
	doomed  bool     // a sibling fails fast, so this job may be cancelled or never inserted
}

// chainOutcome is the outcome that the model predicts for a chain.
type chainOutcome struct {
	last     string // path of its last job
	ends     prediction
	impaired bool
}

// model predicts pipelines' outcomes, keyed by their jobs' paths. It knows nothing about rows, counters or pods: it derives the outcome of
// a job that fans out from its branches' outcomes.
type model struct {
	predictions map[string]prediction
	fast        map[string][]string // by job that fails fast: the children, at least one of which has failed
}

func newModel() *model {
	return &model{predictions: map[string]prediction{}, fast: map[string][]string{}}
}

func (m *model) chain(list []*node) (c chainOutcome) {
	for sees := []string(nil); len(list) > 0; {
		n := list[0]
		f := prediction{state: job.Succeeded, outcome: job.OK, reason: job.ReasonOK, starts: 1, sees: sees}
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
		m.predictions[n.Path] = f
		c = chainOutcome{last: n.Path, ends: f, impaired: c.impaired || f.outcome == job.Warning}
		if f.state != job.Succeeded {
			break
		}
	}
	return c
}

// fan predicts the outcomes of a job that fans out and of its branches. It returns the branches' outcomes as seen by the next job.
func (m *model) fan(n *node, f *prediction) (sees []string) {
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
			f.message += fmt.Sprintf(" completely, %d in part", harmed)
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
	for path, of := range inner.predictions {
		of.doomed = of.doomed || race
		m.predictions[path] = of
	}
	for path, list := range inner.fast {
		m.fast[path] = list
	}
	return sees
}

// status returns the status of a pipeline with outcome c.
func (c chainOutcome) status() string {
	switch {
	case c.ends.state != job.Succeeded:
		return string(c.ends.state)
	case c.impaired:
		return "partial"
	}
	return "succeeded"
}

// saw formats a branch outcome as a join sees it.
func saw(no int, state job.State, outcome job.OutcomeStatus, reason job.Reason, result string) string {
	return fmt.Sprintf("%d %s %s %s %s", no, state, outcome, reason, result)
}
