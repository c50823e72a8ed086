package main

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/tools/torture"
)

func TestMutantSelection(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	for text, want := range map[string][]string{
		"":                       nil,
		"all":                    torture.MutantNames(),
		"no_fence":               {"no_fence"},
		"event_gap, no_fence , ": {"event_gap", "no_fence"},
	} {
		got, err := mutants(text)
		is.NoErr(err)
		is.Equal(got, want)
	}
}

func TestMutantMatrixFlags(t *testing.T) {
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
		{"-mutants", "all", "-check", "."}, {"-mutants", "all", "-dir", "x"}, {"-mutants", "all", "-binary", "x"}, {"-mutant", "nobody"}, {"-mutant", "no_fence", "-binary", "x"},
	} {
		_, err := parse(args, &stderr)
		is.True(err != nil) // the command line is rejected
	}
}

func TestMutantTableLine(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	one := caught{Mutant: "no_fence", Runs: 3, Seconds: 400}
	is.True(strings.Contains(one.String(), "SURVIVED 3 runs"))
	one.Caught, one.Seed, one.Invariants, one.First = true, 2, []string{"I3", "I7"}, "job 7: so and so"
	is.True(strings.Contains(one.String(), "caught by I3, I7; seed 2"))
	is.True(strings.Contains(one.String(), "job 7: so and so"))
}
