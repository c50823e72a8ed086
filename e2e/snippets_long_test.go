//go:build long

package e2e

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/internal/pgtest"
)

// snippet is an unmodified program from docs/enqueue-from-sql.md in another language.
type snippet struct {
	t          *testing.T
	text, dir  string
	url        string
	pool       *pgxpool.Pool
	executable string
}

// languages defines how to run the snippet in each language. once runs the snippet unchanged. many runs it for each number from FIRST to
// 1000, printing the number before each round. A third of the rounds roll back, and in a fifth of the rounds the process is killed within a
// few milliseconds.
var languages = map[string]struct {
	install    func(t *testing.T, dir string)
	executable string
	once, many func(text string) []string
}{
	"python": { // uses psycopg (Debian: python3-psycopg)
		install: func(t *testing.T, _ string) {
			if out, err := exec.Command("/usr/bin/python3", "-c", "import psycopg").CombinedOutput(); err != nil {
				t.Skipf("this machine has no psycopg: %s", out)
			}
		},
		executable: "/usr/bin/python3",
		once: func(text string) []string {
			return []string{"-c", "import os, psycopg\nfrom psycopg.types.json import Json\nurl = os.environ['URL']\n" + text}
		},
		many: func(text string) []string {
			return []string{"-c", `import os, psycopg, random, signal
from psycopg.types.json import Json
url = os.environ['URL']
for no in range(int(os.environ['FIRST']), 1001):
    print(no, flush=True)
    if random.random() < 0.2:
        signal.setitimer(signal.ITIMER_REAL, random.uniform(0.0001, 0.02))
    try:
` + indented(strings.ReplaceAll(text, "7", "no")) + `
            if random.random() < 0.33:
                raise KeyError()
    except KeyError:
        pass
    signal.setitimer(signal.ITIMER_REAL, 0)
`}
		},
	},
	"ts": { // uses the npm package pg; without type annotations, it also runs as JavaScript
		install: func(t *testing.T, dir string) {
			install := exec.Command("npm", "install", "--no-audit", "--no-fund", "pg@8")
			install.Dir = dir
			if out, err := install.CombinedOutput(); err != nil {
				t.Skipf("this machine has no npm, or no network for it: %v %s", err, out)
			}
		},
		executable: "node",
		once: func(text string) []string {
			return []string{"-e", "(async () => { const client = new (require('pg').Client)(process.env.URL); await client.connect();\n" + text +
				"\nawait client.end() })()"}
		},
		many: func(text string) []string {
			text = strings.ReplaceAll(text, "7", "no")
			text = strings.ReplaceAll(text, `await client.query("commit")`,
				`await client.query(Math.random() < 0.33 ? "rollback" : "commit")`)
			return []string{"-e", `(async () => {
const client = new (require('pg').Client)(process.env.URL); await client.connect();
for (let no = Number(process.env.FIRST); no <= 1000; no++) {
	require('fs').writeSync(1, no + "\n");
	const kill = Math.random() < 0.2 && setTimeout(() => process.kill(process.pid, "SIGKILL"), Math.random() * 4);
	` + text + `
	clearTimeout(kill);
}
await client.end() })()`}
		},
	},
}

func indented(text string) string {
	var b strings.Builder
	for line := range strings.Lines(strings.TrimSpace(text)) {
		b.WriteString("        " + line)
	}
	return b.String()
}

// run runs a program in the snippet's language and returns its output and error.
func (s snippet) run(program []string, environment ...string) (string, error) {
	s.t.Helper()
	cmd := exec.CommandContext(s.t.Context(), s.executable, program...) // #nosec G204 -- the programs come from our own page
	cmd.Dir = s.dir
	cmd.Env = append(append(os.Environ(), "URL="+s.url, "PGPASSWORD="+s.pool.Config().ConnConfig.Password), environment...)
	var errs strings.Builder
	cmd.Stderr = &errs
	out, err := cmd.Output()
	if err != nil && errs.Len() > 0 {
		s.t.Fatalf("%v: %s", err, errs.String())
	}
	return string(out), err
}

func snippetOf(t *testing.T, language string) snippet {
	t.Helper()
	is := is.New(t)
	page, err := os.ReadFile(filepath.Join("..", "docs", "enqueue-from-sql.md"))
	is.NoErr(err)
	_, text, _ := strings.Cut(string(page), "```"+language+"\n")
	text, _, found := strings.Cut(text, "```")
	is.True(found)
	s := snippet{t: t, text: text, dir: t.TempDir(), url: pgtest.URL(t), executable: languages[language].executable}
	s.pool = pgtest.Connect(t, s.url)
	_, err = s.pool.Exec(t.Context(), `create table orders (no int primary key)`)
	is.NoErr(err)
	languages[language].install(t, s.dir)
	return s
}

func TestSQLSnippets(t *testing.T) {
	for name, language := range languages {
		t.Run(name, func(t *testing.T) {
			is := is.New(t)
			s := snippetOf(t, name)
			_, err := s.run(language.once(s.text))
			is.NoErr(err)
			var stored string
			is.NoErr(s.pool.QueryRow(t.Context(), `select string_agg(o.no || j.kind || j.args::text, ' ') from orders o, trapeze.job j`).Scan(&stored))
			is.Equal(strings.ReplaceAll(stored, " ", ""), `7mail{"order":7}`)
		})
	}
}

// After a thousand rounds with commits, rollbacks and killed clients, an order has a job if and only if the order was committed.
func TestSQLSnippetCommitsAndKills(t *testing.T) {
	for name, language := range languages {
		t.Run(name, func(t *testing.T) {
			is := is.New(t)
			s := snippetOf(t, name)
			program, killed := language.many(s.text), 0
			for first := 1; first <= 1000; {
				out, err := s.run(program, "FIRST="+strconv.Itoa(first))
				var exit *exec.ExitError
				if err == nil {
					break
				}
				is.True(errors.As(err, &exit) && exit.ExitCode() == -1) // the process was killed by a signal
				lines := strings.Fields(out)
				if len(lines) > 0 {
					last, err := strconv.Atoi(lines[len(lines)-1])
					is.NoErr(err)
					first = last + 1
				}
				killed++
			}
			pgtest.Wait(t, "the server has rolled back the killed clients' transactions", func() bool {
				var open int
				is.NoErr(s.pool.QueryRow(t.Context(), `select count(*) from pg_stat_activity where datname = current_database() and state <> 'idle'
					and pid <> pg_backend_pid() and backend_type = 'client backend'`).Scan(&open))
				return open == 0
			})
			var orders, wrong int
			is.NoErr(s.pool.QueryRow(t.Context(), `select count(o.no), count(*) filter (where o.no is null or j.id is null)
				from orders o full join trapeze.jobs j on (j.args ->> 'order')::int = o.no`).Scan(&orders, &wrong))
			t.Logf("%d orders of 1000, %d killed clients", orders, killed)
			is.Equal(wrong, 0)
			is.True(orders > 300 && orders < 900)
			is.True(killed > 30)
			is.NoErr(s.pool.QueryRow(t.Context(), `select count(*) - count(distinct args ->> 'order') from trapeze.jobs`).Scan(&wrong))
			is.Equal(wrong, 0) // no order has two jobs
		})
	}
}
