package main

import (
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/trapeze-run/trapeze/tools/torture"
)

// progress shows how far a run has come. On a terminal, it updates a single line; otherwise, it prints a line from time to time.
type progress struct {
	to       io.Writer
	terminal bool
	shown    int // number of characters currently shown on the terminal
	stop     chan struct{}
	stopped  sync.WaitGroup
}

const (
	redrawEvery = 200 * time.Millisecond
	lineEvery   = 15 * time.Second
)

// showProgress shows the progress of a world until end is called.
func showProgress(to io.Writer, w *torture.World) *progress {
	p := &progress{to: to, stop: make(chan struct{})}
	if f, ok := to.(*os.File); ok {
		info, err := f.Stat()
		p.terminal = err == nil && info.Mode()&os.ModeCharDevice != 0
	}
	every := lineEvery
	if p.terminal {
		every = redrawEvery
	}
	p.stopped.Go(func() {
		tick := time.NewTicker(every)
		defer tick.Stop()
		for {
			select {
			case <-p.stop:
				return
			case <-tick.C:
				p.draw(progressLine(w.Progress()))
			}
		}
	})
	return p
}

func (p *progress) draw(line string) {
	if !p.terminal {
		fmt.Fprintln(p.to, line)
		return
	}
	fmt.Fprintf(p.to, "\r%s%s", line, strings.Repeat(" ", max(p.shown-len(line), 0)))
	p.shown = len(line)
}

// end stops showing the progress and clears the line.
func (p *progress) end() {
	close(p.stop)
	p.stopped.Wait()
	if p.terminal {
		p.draw("")
		fmt.Fprint(p.to, "\r")
	}
}

func progressLine(p torture.Progress) string {
	line := fmt.Sprintf("%s %s", p.Phase, p.Elapsed.Round(time.Second))
	if p.Total > 0 {
		line += "/" + p.Total.String()
	}
	line += fmt.Sprintf("  faults %d  jobs %d", p.Faults, p.Jobs)
	if p.LastFault != "" {
		line += "  last " + p.LastFault
	}
	return line
}
