package cli

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/trapeze-run/trapeze/internal/text"
)

// leastWatch is the minimum interval of --watch.
const leastWatch = 100 * time.Millisecond

// WatchFlag adds the --watch flag to a command that shows the current state. Its value is 0 if the flag is not set.
func WatchFlag(c *cobra.Command) *time.Duration {
	every := c.Flags().Duration("watch", 0, "refresh at this interval until ctrl-C; --watch alone: 2s")
	c.Flags().Lookup("watch").NoOptDefVal = "2s"
	return every
}

// frame buffers the output of one refresh.
type frame struct {
	bytes.Buffer
	screen io.Writer
}

// Watch calls show once or, if every is not 0, repeatedly until it is interrupted. On a terminal, it redraws in place; elsewhere, it prints
// one frame after another. During an outage, it shows the error and continues.
func Watch(c *cobra.Command, every time.Duration, show func(context.Context) error) error {
	switch {
	case every == 0:
		return show(c.Context())
	case every < leastWatch:
		return Usage("--watch=%s: want at least %s", every, leastWatch)
	}
	ctx, stop := OnSignal(c.Context())
	defer stop()
	out := c.OutOrStdout()
	defer c.SetOut(out)
	place := newCanvas(out)
	defer place.close()
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		picture := &frame{screen: out}
		c.SetOut(picture)
		err := show(ctx)
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			if Code(err) != CodeUnavailable {
				return err
			}
			if place.screen == nil {
				fmt.Fprintln(c.ErrOrStderr(), "trapeze: "+text.OneLine(err))
			} else {
				fmt.Fprintln(picture, text.OneLine(err))
			}
		}
		if err := place.draw(picture.String(), WantsJSON(c)); err != nil {
			return err
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil
		}
	}
}

// canvas is the output on which frames are drawn.
type canvas struct {
	out    io.Writer
	screen *os.File // nil if the output is not a terminal
	drawn  bool
}

// newCanvas switches a terminal to its alternate screen, so that the previous contents reappear afterwards.
func newCanvas(out io.Writer) *canvas {
	p := &canvas{out: out, screen: screenOf(out)}
	if p.screen != nil {
		fmt.Fprint(out, "\x1b[?1049h\x1b[?25l")
	}
	return p
}

func (p *canvas) close() {
	if p.screen != nil {
		fmt.Fprint(p.out, "\x1b[?25h\x1b[?1049l")
	}
}

// draw replaces the previous frame with picture, truncated to the height of the terminal. If the output is not a terminal, frames are
// separated by an empty line unless they are JSON.
func (p *canvas) draw(picture string, lines bool) error {
	if p.screen == nil {
		if p.drawn && !lines && picture != "" {
			picture = "\n" + picture
		}
		p.drawn = true
		_, err := io.WriteString(p.out, picture)
		return err
	}
	_, height, err := term.GetSize(int(p.screen.Fd()))
	if err != nil || height < 2 {
		height = 24
	}
	_, err = io.WriteString(p.out, fit(picture, height))
	return err
}

// fit returns text that overwrites the previous frame. It moves to the top of the screen and clears the rest of every line.
func fit(picture string, height int) string {
	lines := strings.Split(strings.TrimSuffix(picture, "\n"), "\n")
	if len(lines) > height {
		more := len(lines) - height + 1
		lines = append(lines[:height-1], fmt.Sprintf("… %d more lines", more))
	}
	return "\x1b[H" + strings.Join(lines, "\x1b[K\n") + "\x1b[K\x1b[J"
}
