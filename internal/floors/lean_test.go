package floors

import (
	"debug/buildinfo"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"testing"

	"github.com/matryer/is"
)

// Limits for a program that embeds only package runner (see docs/dependencies.md). The size limit applies to a stripped binary on
// linux/amd64. It leaves room for long file paths in the binary. The build does not use -trimpath, because go build would then recompile
// all dependencies.
const (
	mostModules = 20
	mostBytes   = 14_500_000
)

// TestSmallServiceModuleCount builds a service that embeds only package runner. If the test fails because of a new module, avoid the
// module or move the code that imports it to a separate package, such as runner/migrate and runner/metrics.
func TestSmallServiceModuleCount(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	program := filepath.Join(t.TempDir(), "service")
	build := exec.CommandContext(t.Context(), "go", "build", "-ldflags", "-s -w", "-o", program, "./internal/floors/testdata/service")
	build.Dir = root(t)
	output, err := build.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, output)
	}
	linked, err := buildinfo.ReadFile(program)
	is.NoErr(err)
	info, err := os.Stat(program)
	is.NoErr(err)
	t.Logf("%d modules, %.2f MB", len(linked.Deps), float64(info.Size())/1e6)
	if len(linked.Deps) > mostModules {
		t.Errorf("%d modules, want at most %d:", len(linked.Deps), mostModules)
		for _, m := range linked.Deps {
			t.Log(m.Path)
		}
	}
	if runtime.GOOS+"/"+runtime.GOARCH == "linux/amd64" && info.Size() > mostBytes {
		t.Errorf("%d bytes, want at most %d", info.Size(), mostBytes)
	}
}
