package main

import (
	"context"
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/trapeze-run/trapeze/tools/torture"
	"github.com/trapeze-run/trapeze/tools/torture/checker"
	"github.com/trapeze-run/trapeze/tools/torture/history"
)

// A mutant must be caught within mutantSeeds runs with different seeds. Each run takes mutantMinutes.
const (
	mutantSeeds   = 3
	mutantMinutes = 2
)

// mutants parses a list of mutants; "all" selects every mutant.
func mutants(text string) (names []string, err error) {
	if text == "all" {
		return torture.MutantNames(), nil
	}
	for name := range strings.SplitSeq(text, ",") {
		if name = strings.TrimSpace(name); name == "" {
			continue
		}
		if !slices.Contains(torture.MutantNames(), name) {
			return nil, fmt.Errorf("unknown mutant %q: want all, or some of %s", name, strings.Join(torture.MutantNames(), ", "))
		}
		names = append(names, name)
	}
	return names, nil
}

// matrix tests the torture test itself. It tortures each mutant until some seed catches it. Invariants that the same seed also breaks
// without a mutant prove nothing and do not count.
type matrix struct {
	c       command
	control map[uint64][]string // by seed, the invariants that break without a mutant
	to, err io.Writer
}

// caught is the result for one mutant.
type caught struct {
	Mutant     string   `json:"mutant"`
	Caught     bool     `json:"caught"`
	Seed       uint64   `json:"seed,omitempty"`       // the seed that caught the mutant
	Runs       int      `json:"runs"`                 // number of runs with the mutant
	Seconds    float64  `json:"seconds"`              // duration of these runs, including setup
	Invariants []string `json:"invariants,omitempty"` // invariants broken in the last run
	First      string   `json:"first,omitempty"`      // first violation of an expected invariant
	Dir        string   `json:"dir,omitempty"`        // folder with the records
}

// runMutants tortures the requested mutants. It fails if a mutant survives or if the program breaks an invariant even without a mutant.
func runMutants(ctx context.Context, c command, stdout, stderr io.Writer) int {
	m := &matrix{c: c, control: map[uint64][]string{}, to: stdout, err: stderr}
	if c.asJSON {
		m.to = stderr
	}
	var list []caught
	for _, name := range c.mutants {
		one, err := m.hunt(ctx, name)
		if err != nil {
			fmt.Fprintf(stderr, "torture: mutant %s: %v\n", name, err)
			return exitMachine
		}
		list = append(list, one)
		fmt.Fprintln(m.to, one)
	}
	code := exitGreen
	for seed, broken := range m.control {
		if len(broken) > 0 {
			fmt.Fprintf(m.to, "seed %d breaks %s without a mutant\n", seed, strings.Join(broken, ", "))
			code = exitBroken
		}
	}
	survivors := 0
	for _, one := range list {
		if !one.Caught {
			survivors++
			code = exitBroken
		}
	}
	fmt.Fprintf(m.to, "%d of %d mutants caught\n", len(list)-survivors, len(list))
	if c.asJSON {
		if failed := printJSON(stdout, list); failed != exitGreen {
			return failed
		}
	}
	return code
}

// hunt tortures one mutant with one seed after another until the mutant is caught or no seeds are left.
func (m *matrix) hunt(ctx context.Context, name string) (one caught, err error) {
	one.Mutant = name
	wanted := wantedInvariants(name)
	began := time.Now()
	defer func() { one.Seconds = time.Since(began).Round(time.Second).Seconds() }()
	for seed := m.c.o.Seed; seed < m.c.o.Seed+mutantSeeds; seed++ {
		known, ok := m.control[seed]
		if !ok {
			control := time.Now()
			found, _, err := m.run(ctx, seed, "")
			if err != nil {
				return one, fmt.Errorf("the control, seed %d: %w", seed, err)
			}
			for _, f := range found {
				known = append(known, f.Invariant)
			}
			m.control[seed] = known
			began = began.Add(time.Since(control)) // a control run does not count toward the mutant's time
		}
		found, dir, err := m.run(ctx, seed, name)
		if err != nil {
			return one, fmt.Errorf("seed %d: %w", seed, err)
		}
		one.Runs++
		one.Invariants = nil
		for _, f := range found {
			if slices.Contains(known, f.Invariant) {
				continue
			}
			one.Invariants = append(one.Invariants, f.Invariant)
			if slices.Contains(wanted, f.Invariant) && !one.Caught {
				one.Caught, one.Seed, one.Dir, one.First = true, seed, dir, f.Violations[0].What
			}
		}
		if one.Caught {
			break
		}
	}
	return one, nil
}

// wantedInvariants returns the invariants at least one of which must break. Other broken invariants are reported but do not count, because
// a slow machine also breaks those that depend on timing.
func wantedInvariants(mutant string) []string {
	m, _ := torture.MutantNamed(mutant)
	return m.Invariants
}

// run performs one run and returns its broken findings and its folder.
func (m *matrix) run(ctx context.Context, seed uint64, name string) (accused []checker.Finding, dir string, err error) {
	c := m.c
	c.o.Seed, c.o.Mutant = seed, name
	c.o.Race = m.c.race.of(seed)
	called := name
	if called == "" {
		called = "control"
	}
	c.o.Dir = freeFolder(filepath.Join("torture", "mutants", fmt.Sprintf("%s-%d", called, seed)))
	fmt.Fprintf(m.err, "── %s\n", called)
	if dir, err = doRun(ctx, c, m.err, m.err); err != nil {
		return nil, dir, err
	}
	r, err := history.Read(dir)
	if err != nil {
		return nil, dir, err
	}
	for _, f := range torture.Judge(r).Findings {
		if len(f.Violations) > 0 {
			accused = append(accused, f)
		}
	}
	return accused, dir, nil
}

// String returns the mutant's line in the table.
func (one caught) String() string {
	if !one.Caught {
		return fmt.Sprintf("%-22s SURVIVED %d runs, %.0f s; the last broke %v, and none of %v", one.Mutant, one.Runs, one.Seconds, one.Invariants,
			wantedInvariants(one.Mutant))
	}
	return fmt.Sprintf("%-22s caught by %s; seed %d, run %d, %.0f s\n%22s %s; records in %s", one.Mutant, strings.Join(one.Invariants, ", "),
		one.Seed, one.Runs, one.Seconds, "", one.First, one.Dir)
}
