//go:build long

package main

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/internal/pgtest"
)

// TestEveryShellBlockRuns runs each page's shell blocks in order and in a single shell, while a pod with the demo kinds is running. A block
// marked no-run needs another machine, another program or the reader's own IDs. TestCommandsInDocuments checks the commands in
// such blocks.
func TestEveryShellBlockRuns(t *testing.T) {
	t.Parallel()
	seen := 0
	for _, page := range pages(t) {
		var script strings.Builder
		for _, one := range blocks(t, page, "(?:sh|shell|bash|console)") {
			switch one.mark {
			case "":
				script.WriteString(one.text)
				seen++
			case "no-run":
			default:
				t.Errorf("%s: a shell block has the mark %q", page, one.mark)
			}
		}
		if script.Len() == 0 {
			continue
		}
		t.Run(filepath.Base(page), func(t *testing.T) {
			t.Parallel()
			is := is.New(t)
			bin, url := t.TempDir(), pgtest.EmptyURL(t)
			is.NoErr(os.Symlink(os.Args[0], filepath.Join(bin, "trapeze")))
			serve(t, url, nil)
			ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
			defer cancel()
			c := exec.CommandContext(ctx, "bash", "-euo", "pipefail", "-x", "-c", script.String())
			c.Dir, c.Env = t.TempDir(), environment("DATABASE_URL="+url, "PATH="+bin+":"+os.Getenv("PATH"))
			if out, err := c.CombinedOutput(); err != nil {
				t.Errorf("%v:\n%s", err, out)
			}
		})
	}
	if seen < 8 {
		t.Errorf("only %d shell blocks found in the documents: is the pattern still right?", seen)
	}
}
