package e2e

import (
	"strings"
	"testing"

	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/internal/pgtest"
)

func TestShellCompletionFromDatabase(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	p := patient{database{t, pgtest.URL(t)}, nil}
	p.pool = pgtest.Connect(t, p.url)
	p.exec(`insert into trapeze.lanes (name) values ('slow')`)
	p.join("web-1", 600, "csv_ingest", "factor_sync")
	id := p.enqueue("csv_ingest", "--subject", "travel/2025")
	completes := func(args ...string) []string {
		lines := strings.Split(strings.TrimSpace(p.ok(append([]string{"__complete"}, args...)...)), "\n")
		return lines[:len(lines)-1] // drop the last line, which is a directive for the shell
	}
	is.Equal(completes("jobs", "--lane", ""), []string{"default", "slow"})
	is.Equal(completes("jobs", "--lane", "s"), []string{"slow"})
	is.Equal(completes("enqueue", ""), []string{"csv_ingest", "factor_sync"})
	is.Equal(completes("jobs", "--state", "ca"), []string{"cancelled"})
	is.Equal(completes("pipelines", "--status", "pa"), []string{"partial"})
	is.Equal(completes("kill", ""), []string{id + "\tcsv_ingest pending travel/2025"})
	p.exec(`insert into trapeze.schedules (name, expression, kind, paused) values ('nightly', '@daily', 'csv_ingest', true)`)
	is.True(strings.HasPrefix(completes("cron", "pause", "n")[0], "nightly\t"))
	is.Equal(completes("cron", "set", "nightly", "@daily", "f"), []string{"factor_sync"})
	is.Equal(completes("cron", "set", "nightly", "--missed", "c"), []string{"coalesce", "catch_up"})
	is.Equal(completes("kill", id, ""), []string{})
	nowhere := trapeze(t, []string{"DATABASE_URL=postgres://app@127.0.0.1:1/app"}, "__complete", "jobs", "--lane", "")
	is.Equal(nowhere.out, ":4\n") // no completions, and no error message that would garble the command line
	is.True(strings.Contains(trapeze(t, nil, "completion", "zsh").out, "compdef"))
}
