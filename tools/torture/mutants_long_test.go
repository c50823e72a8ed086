//go:build long

package torture

import (
	"os/exec"
	"path"
	"slices"
	"strings"
	"testing"
)

// A mutant that does not compile, or whose SQL is rejected by PostgreSQL, would be caught by any test.
func TestMutantsCompileAndPrepare(t *testing.T) {
	for _, m := range Mutants() {
		overlay, err := m.Plant("../..", t.TempDir())
		if err != nil {
			t.Fatal(err)
		}
		var folders []string
		for _, e := range m.Edits {
			folders = append(folders, "./"+path.Dir(e.File))
		}
		slices.Sort(folders)
		for _, folder := range slices.Compact(folders) {
			args := []string{"build", "-overlay", overlay, folder}
			if strings.HasPrefix(folder, "./internal/store") {
				args = []string{"test", "-overlay", overlay, "-run", "^TestEveryStatementPrepares$", folder}
			}
			check := exec.CommandContext(t.Context(), "go", args...)
			check.Dir = "../.."
			if out, err := check.CombinedOutput(); err != nil {
				t.Errorf("%s: %s: %v\n%s", m.Name, folder, err, out)
			}
		}
	}
}
