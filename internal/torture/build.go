package torture

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
)

// program is what is tortured, and tags what it is built with: moments to die at, and mistakes to make on purpose, neither
// of which does anything unless it is asked for.
const (
	program = "github.com/trapeze-run/trapeze/cmd/trapeze"
	tags    = "failpoints,mutants"
)

// Build builds the program under test, with the race detector if asked to. It needs the go command, the module's sources
// around the current folder, and for the race detector a C compiler.
func Build(ctx context.Context, path string, race bool) error {
	args := []string{"build", "-tags", tags, "-o", path}
	if race {
		args = append(args, "-race")
	}
	build := exec.CommandContext(ctx, "go", append(args, program)...)
	if out, err := build.CombinedOutput(); err != nil {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		return fmt.Errorf("build the program under test: %w\n%s", err, strings.TrimSpace(string(out)))
	}
	return nil
}

// hashOf is the SHA-256 of a file.
func hashOf(path string) (string, error) {
	f, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer f.Close()
	h := sha256.New()
	if _, err := io.Copy(h, f); err != nil {
		return "", err
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}
