package main

import (
	"context"
	"fmt"
	"io"
	"path/filepath"
	"time"

	"github.com/trapeze-run/trapeze/tools/torture"
	"github.com/trapeze-run/trapeze/tools/torture/history"
)

// runOnce performs one run and judges it.
func runOnce(ctx context.Context, c command, stdout, stderr io.Writer) int {
	dir, err := doRun(ctx, c, stdout, stderr)
	if err != nil {
		fmt.Fprintln(stderr, "torture:", err)
		return exitMachine
	}
	return judge(dir, c, stdout, stderr)
}

// doRun performs one run. It returns the run's folder once the records are complete.
func doRun(ctx context.Context, c command, stdout, stderr io.Writer) (dir string, err error) {
	began := time.Now()
	if c.o.Dir == "" {
		c.o.Dir = freeFolder(filepath.Join("torture", fmt.Sprint(c.o.Seed)))
	}
	if c.o.Pods == 0 {
		c.o.Pods = torture.PodsFor(c.o.Seed)
	}
	people := stdout
	if c.asJSON {
		people = stderr
	}
	fmt.Fprintf(people, "seed %d: building and starting %d pods in %s\n", c.o.Seed, c.o.Pods, c.o.Dir)
	w, err := torture.NewWorld(ctx, c.o)
	if err != nil {
		return "", err
	}
	defer func() {
		if closed := w.Close(); err == nil && closed != nil {
			err = closed
		}
	}()
	fmt.Fprintln(people, who(w.Settings))
	script := torture.NewScript(w, c.only...)
	if c.replay != "" {
		script.Plan = c.acts
	}
	fmt.Fprintf(people, "built in %s; %d faults planned for %s\n", time.Since(began).Round(time.Second), len(script.Plan), w.Duration)
	show := showProgress(stderr, w)
	err = w.Torture(ctx, script)
	show.end()
	return w.Dir, err
}

// who describes which program was tested and with which seed.
func who(s history.Settings) string {
	text := fmt.Sprintf("seed %d · binary %.12s · PostgreSQL %s", s.Seed, s.Binary, s.PostgreSQL)
	if s.Race {
		text += " · race detector"
	}
	if s.Mutant != "" {
		text += " · mutant " + s.Mutant
	}
	return text
}
