package main

import (
	"bytes"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/internal/mutant"
	"github.com/trapeze-run/trapeze/internal/torture/checker"
	"github.com/trapeze-run/trapeze/internal/torture/history"
)

func TestMutantsAreChosenByNameOrAllOfThem(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	for text, want := range map[string][]string{
		"":                       nil,
		"all":                    mutant.Names(),
		"no_fence":               {mutant.NoFence},
		"event_gap, no_fence , ": {mutant.EventGap, mutant.NoFence},
	} {
		got, err := mutants(text)
		is.NoErr(err)
		is.Equal(got, want)
	}
}

func TestAMatrixHasItsOwnDefaultsAndStandsAlone(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	var stderr bytes.Buffer
	c, err := parse([]string{"-mutants", "no_fence"}, &stderr)
	is.NoErr(err)
	is.Equal(c.o.Seed, uint64(1))
	is.Equal(c.o.Duration, mutantMinutes*time.Minute)
	c, err = parse([]string{"-mutants", "no_fence", "-seed", "7", "-minutes", "1"}, &stderr)
	is.NoErr(err)
	is.Equal(c.o.Seed, uint64(7))
	is.Equal(c.o.Duration, time.Minute)
	for _, args := range [][]string{
		{"-mutants", "nobody"}, {"-mutants", "all", "-mutant", "no_fence"}, {"-mutants", "all", "-only", "F2"},
		{"-mutants", "all", "-check", "."}, {"-mutants", "all", "-dir", "x"},
	} {
		_, err := parse(args, &stderr)
		is.True(err != nil) // a usage error
	}
}

func TestEveryMutantHasItsGuardsAmongTheInvariants(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	is.Equal(len(guards), len(mutant.Names()))
	known := map[string]bool{}
	for _, f := range checker.Check(&history.Run{}) {
		known[f.Invariant] = true
	}
	for _, name := range mutant.Names() {
		is.True(len(guards[name]) > 0) // somebody must notice it
		for _, invariant := range guards[name] {
			is.True(known[invariant]) // who exists
		}
	}
}

// The page that explains the mutants names each of them, and tests that exist.
func TestEveryMutantIsOnThePageWithATest(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	page, err := os.ReadFile("../../docs/testing.md")
	is.NoErr(err)
	var tests strings.Builder
	for _, file := range []string{"../../internal/store/mutants_test.go", "../../runner/mutants_test.go"} {
		text, err := os.ReadFile(file)
		is.NoErr(err)
		tests.Write(text)
	}
	for _, name := range mutant.Names() {
		row := regexp.MustCompile("(?m)^\\| `" + name + "` \\|.*`Test.*$").FindString(string(page))
		is.True(row != "") // a row that says what the mistake is, and a test that shows it
		for _, test := range regexp.MustCompile("`(Test[A-Za-z]+)`").FindAllStringSubmatch(row, -1) {
			is.True(strings.Contains(tests.String(), "func "+test[1]+"(")) // which exists
		}
	}
}

func TestALineOfTheTableSaysWhoCaughtItOrThatNobodyDid(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	one := caught{Mutant: mutant.NoFence, Runs: 3, Seconds: 400}
	is.True(strings.Contains(one.String(), "SURVIVED 3 runs"))
	one.Caught, one.Seed, one.Invariants, one.First = true, 2, []string{"I3", "I7"}, "job 7: so and so"
	is.True(strings.Contains(one.String(), "caught by I3, I7; seed 2"))
	is.True(strings.Contains(one.String(), "job 7: so and so"))
}
