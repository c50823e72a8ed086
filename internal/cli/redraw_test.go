package cli

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/matryer/is"
	"github.com/spf13/cobra"
)

func TestWatchRedrawUntilInterrupt(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	ctx, stop := context.WithCancel(t.Context())
	var out, errs bytes.Buffer
	c := &cobra.Command{}
	c.SetContext(ctx)
	c.SetOut(&out)
	c.SetErr(&errs)
	shown := 0
	is.NoErr(Watch(c, leastWatch, func(context.Context) error {
		switch shown++; shown {
		case 2:
			return Unavailable("the database does not answer")
		case 4:
			stop()
		}
		_, err := fmt.Fprintln(c.OutOrStdout(), shown)
		return err
	}))
	is.Equal(out.String(), "1\n\n3\n") // only complete frames are printed, not the interrupted one
	is.Equal(strings.TrimSpace(errs.String()), "trapeze: the database does not answer")
	is.Equal(Watch(c, leastWatch-1, nil) != nil, true) // the interval is too short
	c.SetContext(t.Context())
	broken := errors.New("no right to look")
	is.True(errors.Is(Watch(c, leastWatch, func(context.Context) error { return broken }), broken)) // a permanent error ends the watch
}

func TestAPictureFitsTheScreen(t *testing.T) {
	is := is.New(t)
	is.Equal(fit("a\nb\n", 24), "\x1b[Ha\x1b[K\nb\x1b[K\x1b[J")
	is.Equal(fit("a\nb\nc\nd\n", 3), "\x1b[Ha\x1b[K\nb\x1b[K\n… 2 more lines\x1b[K\x1b[J")
}
