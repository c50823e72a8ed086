package floors

import (
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/matryer/is"
)

// retiredPhrases maps texts that operators did not understand to their replacements. No message, page or help text may contain them.
var retiredPhrases = map[string]string{
	"Nothing is picked": "None selected", "Leave it": "Keep", ">Later<": "Scheduled", "For approval": "Needs approval", "For branches": "Waiting for children",
	"Up since": "Uptime", "Became of it": "Outcome", ">Said<": "Message", ">Who<": "Actor", ">Did<": "Action", ">To<": "Target", ">Allowed<": "Result",
	"It never was": "It does not exist, or was removed by retention", "jobs that are %s": "failed jobs have finished and cannot be cancelled",
	"it has neither": "only failed or cancelled jobs can be retried", "clock is %s behind of": "the clocks agree", "give or take": "to within",
	", as before\"": "already resumed", "Nobody knows who": "You are not signed in", "going on now": "Back to Now",
}

func TestNoRetiredPhraseIsShown(t *testing.T) {
	is := is.New(t)
	dir := root(t)
	for _, part := range []string{"api", "cmd", "internal", "job", "remote", "runner", "tools"} {
		is.NoErr(filepath.WalkDir(filepath.Join(dir, part), func(file string, entry fs.DirEntry, err error) error {
			if err != nil || entry.IsDir() || strings.HasSuffix(file, "_test.go") || !slices.Contains([]string{".go", ".html", ".js"}, filepath.Ext(file)) {
				return err
			}
			text, err := os.ReadFile(file)
			for line := range strings.Lines(string(text)) {
				for phrase, better := range retiredPhrases {
					if strings.Contains(line, phrase) && !strings.HasPrefix(strings.TrimSpace(line), "//") {
						t.Errorf("%s: %q: want %q: %s", strings.TrimPrefix(file, dir), phrase, better, strings.TrimSpace(line))
					}
				}
			}
			return err
		}))
	}
}
