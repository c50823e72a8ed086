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

// module and program name the code under test. The build tag compiles in failpoints, which do nothing unless they are enabled.
const (
	module  = "github.com/trapeze-run/trapeze"
	program = module + "/cmd/trapeze"
	tags    = "failpoints"
)

// Build builds the program under test at an absolute path, optionally with the race detector and a planted mutant. It needs the go command,
// the sources of Trapeze and, for the race detector, a C compiler.
func Build(ctx context.Context, path string, race bool, mutant string) error {
	root, err := sources(ctx)
	if err != nil {
		return err
	}
	args := []string{"build", "-tags", tags, "-o", path}
	if race {
		args = append(args, "-race")
	}
	if mutant != "" {
		m, known := MutantNamed(mutant)
		if !known {
			return fmt.Errorf("unknown mutant %q", mutant)
		}
		dir, err := os.MkdirTemp("", "trapeze-mutant-")
		if err != nil {
			return err
		}
		defer os.RemoveAll(dir)
		overlay, err := m.Plant(root, dir)
		if err != nil {
			return err
		}
		args = append(args, "-overlay", overlay)
	}
	build := exec.CommandContext(ctx, "go", append(args, program)...)
	build.Dir = root
	if out, err := build.CombinedOutput(); err != nil {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		return fmt.Errorf("build the program under test: %w\n%s", err, strings.TrimSpace(string(out)))
	}
	return nil
}

// sources returns the folder of Trapeze's sources. The current directory is in Trapeze's module or in the module of the tools.
func sources(ctx context.Context) (root string, err error) {
	out, err := exec.CommandContext(ctx, "go", "list", "-m", "-f", "{{.Dir}}", module).Output()
	if err != nil {
		return "", fmt.Errorf("find the module's sources: %w", err)
	}
	return strings.TrimSpace(string(out)), nil
}

// hashOf returns the SHA-256 of a file.
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
