// Package deploy contains only tests. They check the files for running Trapeze: the Helm chart, the compose file and the systemd unit.
package deploy

import (
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/trapeze-run/trapeze/internal/cli"
)

func read(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// column returns the first two columns of a generated reference page's tables, as a map from the first cell to the second.
func column(t *testing.T, page string) map[string]string {
	t.Helper()
	cells := map[string]string{}
	for _, row := range regexp.MustCompile("(?m)^\\| `([^`]+)` \\| ([^|]*) \\|").FindAllStringSubmatch(read(t, "../docs/"+page), -1) {
		cells[row[1]] = strings.Trim(strings.TrimSpace(row[2]), "`")
	}
	if len(cells) < 10 {
		t.Fatalf("docs/%s: found only %d rows", page, len(cells))
	}
	return cells
}

// notOurs lists variables that pgx reads.
var notOurs = []string{"PGPASSFILE", "PGPASSWORD"}

// secretValue matches the variables whose value is a secret or can contain one.
var secretValue = regexp.MustCompile(`^(DATABASE_URL|TRAPEZE_DATABASE_DIRECT_URL|TRAPEZE_TOKEN|.*PASSWORD)$`)

// checkEnvironment checks that the variables exist and that no value is a secret.
func checkEnvironment(t *testing.T, plain map[string]string, references ...string) {
	t.Helper()
	known := column(t, "reference-environment.md")
	check := func(name string) {
		if _, ok := known[name]; !ok && !slices.Contains(notOurs, name) {
			t.Errorf("the variable %s does not exist", name)
		}
	}
	for name, value := range plain {
		check(name)
		if secretValue.MatchString(name) && !withoutPassword(value) {
			t.Errorf("the value of %s belongs in a secret", name)
		}
	}
	for _, name := range references {
		check(name)
	}
}

// accepted checks that a command with these variables accepts them as its configuration. Commands reject conflicting variables, even those
// that they do not use.
func accepted(t *testing.T, variables map[string]string) {
	t.Helper()
	for _, set := range os.Environ() {
		if name, _, _ := strings.Cut(set, "="); strings.HasPrefix(name, "TRAPEZE_") || name == "DATABASE_URL" {
			t.Setenv(name, "") // restores the variable when the test ends
			_ = os.Unsetenv(name)
		}
	}
	for name, value := range variables {
		t.Setenv(name, value)
	}
	if _, err := cli.Load(); err != nil {
		t.Error(err)
	}
}

// withoutPassword reports whether a database URL contains no password.
func withoutPassword(url string) bool {
	return regexp.MustCompile(`^postgres://[^:@/]+@[^?]+(\?.*)?$`).MatchString(url) && !strings.Contains(url, "password=")
}

// margin is the time that a pod may take to exit after its grace period. The pod uses it to hand back jobs, write its last statistics and
// close its row.
const margin = 5 * time.Second

func seconds(t *testing.T, text string) time.Duration {
	t.Helper()
	d, err := time.ParseDuration(text)
	if n, bad := strconv.Atoi(text); bad == nil {
		d, err = time.Duration(n)*time.Second, nil
	}
	if err != nil {
		t.Fatal(err)
	}
	return d
}
