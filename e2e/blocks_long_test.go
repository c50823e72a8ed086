//go:build long

package e2e

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
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
	block := regexp.MustCompile("(?ms)^ *```(?:sh|shell|bash|console)\\b ?([^\n]*)\n(.*?)^ *```$")
	pages := []string{"../README.md"}
	for _, folder := range []string{"../docs", "../docs/*"} {
		found, err := filepath.Glob(folder + "/*.md")
		is.New(t).NoErr(err)
		pages = append(pages, found...)
	}
	seen := 0
	for _, page := range pages {
		text, err := os.ReadFile(page)
		is.New(t).NoErr(err)
		var script strings.Builder
		for _, found := range block.FindAllStringSubmatch(string(text), -1) {
			switch mark, commands := found[1], found[2]; mark {
			case "":
				script.WriteString(commands)
				seen++
			case "no-run":
			default:
				t.Errorf("%s: a shell block has the mark %q", page, mark)
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
