package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/tools/torture"
	"github.com/trapeze-run/trapeze/tools/torture/history"
)

func TestTortureWrongCommandLine(t *testing.T) {
	t.Parallel()
	for args, says := range map[string]string{
		"-nosuch":                     "-help",
		"-minutes 0":                  "more than 0",
		"-pods 33":                    "1 to 32",
		"-race perhaps":               "yes, no or auto",
		"-only F999":                  "-list",
		"-only F40":                   "cannot be injected",
		"-only F1 -replay plan.jsonl": "-replay",
		"-replay /nonexistent":        "no such file",
		"more":                        "-help",
	} {
		t.Run(args, func(t *testing.T) {
			is := is.New(t)
			var stdout, stderr bytes.Buffer
			is.Equal(run(strings.Fields(args), &stdout, &stderr), exitUsage)
			is.Equal(stdout.Len(), 0)
			is.Equal(strings.Count(stderr.String(), "\n"), 1)
			is.True(strings.Contains(stderr.String(), says))
		})
	}
}

func TestHelpIsNoError(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	var stdout, stderr bytes.Buffer
	is.Equal(run([]string{"-help"}, &stdout, &stderr), exitGreen)
	is.True(strings.Contains(stderr.String(), "-minutes"))
	is.True(strings.Contains(stderr.String(), "Exit codes"))
}

func TestFaultListOutput(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	var stdout, stderr bytes.Buffer
	is.Equal(run([]string{"-list"}, &stdout, &stderr), exitGreen)
	for _, f := range torture.Faults {
		is.True(strings.Contains(stdout.String(), f.Name+" ")) // each fault is listed by name
		is.True(len(f.Injectors) > 0 || f.Always != "" || f.Cannot != "")
	}
}

func TestReplaySizeAndDuration(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	dir := t.TempDir()
	plan, err := history.NewWriter(dir, history.PlanFile)
	is.NoErr(err)
	is.NoErr(plan.Write(history.Act{No: 1, At: time.Second, Verb: "kill", Pod: "pod5"}))
	is.NoErr(plan.Write(history.Act{No: 2, At: 2 * time.Minute, For: 10 * time.Second, Verb: "restart"}))
	is.NoErr(plan.Close())
	var stderr bytes.Buffer
	c, err := parse([]string{"-seed", "1", "-replay", filepath.Join(dir, history.PlanFile)}, &stderr)
	is.NoErr(err)
	is.True(c.o.Narrowed)
	is.Equal(len(c.acts), 2)
	is.Equal(c.o.Pods, 5)
	is.True(c.o.Duration > 130*time.Second)
}

func TestReplayCommandFlags(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	r := &history.Run{Pods: []history.Process{{Pod: "pod1"}, {Pod: "pod1"}, {Pod: "pod2"}, {Pod: "worker1", Via: []string{"pod1"}}}}
	r.Settings = history.Settings{Seed: 8, Race: true, Mutant: "no_fence"}
	is.Equal(replayCommand(r, "runs/8", ""), "make torture ARGS='-seed 8 -pods 2 -race yes -mutant no_fence -replay runs/8/plan.jsonl'")
	r.Settings = history.Settings{Seed: 7}
	is.Equal(replayCommand(r, "runs/7", "bin/x"), "make torture ARGS='-seed 7 -pods 2 -race no -binary bin/x -replay runs/7/plan.jsonl'")
}

func TestARunNeverOverwritesAnother(t *testing.T) {
	is := is.New(t)
	t.Chdir(t.TempDir())
	is.Equal(freeFolder("7"), "7")
	is.NoErr(os.Mkdir("7", 0o755))
	is.Equal(freeFolder("7"), "7-2")
	is.NoErr(os.WriteFile("torture", nil, 0o600)) // a file with this name exists, such as the built program
	first := filepath.Join("torture", "7")
	is.Equal(freeFolder(first), first) // creating the folder will report the reason
}
