package scheduler_test

import (
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/scheduler"
)

// TestDocumentedCronExpressionWords checks the table in docs/scheduling.md. The description of each cron expression must include
// the words that the scheduler generates for it.
func TestDocumentedCronExpressionWords(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	text, err := os.ReadFile("../docs/scheduling.md")
	is.NoErr(err)
	_, section, _ := strings.Cut(string(text), "\n## Expressions\n")
	section, _, _ = strings.Cut(section, "\n## ")
	code := regexp.MustCompile("`([^`]+)`")
	seen := 0
	for _, row := range regexp.MustCompile(`(?m)^\| (.*) \| (.*) \|$`).FindAllStringSubmatch(section, -1) {
		for _, e := range code.FindAllStringSubmatch(row[1], -1) {
			seen++
			calendar, err := scheduler.Parse(e[1], "UTC", time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC))
			is.NoErr(err) // every documented expression is valid
			if words := strings.TrimSuffix(calendar.Words(), " at 00:00"); e[1][0] != '@' && !strings.Contains(row[2], words) {
				t.Errorf("%s: the document does not contain %q", e[1], words)
			}
		}
	}
	is.True(seen > 10) // the table was found
}
