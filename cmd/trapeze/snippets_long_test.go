//go:build long

package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/internal/pgtest"
)

// The programs of docs/enqueue-from-sql.md in other languages, as they stand there, with psycopg (Debian: python3-psycopg) and the pg of npm.
func TestTheProgramsOfThePageOnSQLSubmitJobs(t *testing.T) {
	python := func(t *testing.T, _, program string) *exec.Cmd {
		if out, err := exec.Command("/usr/bin/python3", "-c", "import psycopg").CombinedOutput(); err != nil {
			t.Skipf("this machine has no psycopg: %s", out)
		}
		return exec.Command("/usr/bin/python3", "-c", "import os, psycopg\nfrom psycopg.types.json import Json\nurl = os.environ['URL']\n"+program)
	}
	typescript := func(t *testing.T, dir, program string) *exec.Cmd {
		install := exec.Command("npm", "install", "--no-audit", "--no-fund", "pg@8")
		install.Dir = dir
		if out, err := install.CombinedOutput(); err != nil {
			t.Skipf("this machine has no npm, or no network for it: %v %s", err, out)
		}
		// It uses no types, so it is JavaScript as well.
		return exec.Command("node", "-e", "(async () => { const client = new (require('pg').Client)(process.env.URL); await client.connect();\n"+program+
			"\nawait client.end() })()")
	}
	for language, run := range map[string]func(t *testing.T, dir, program string) *exec.Cmd{"python": python, "ts": typescript} {
		t.Run(language, func(t *testing.T) {
			is := is.New(t)
			page, err := os.ReadFile(filepath.Join("..", "..", "docs", "enqueue-from-sql.md"))
			is.NoErr(err)
			_, program, _ := strings.Cut(string(page), "```"+language+"\n")
			program, _, found := strings.Cut(program, "```")
			is.True(found)
			url, dir := pgtest.URL(t), t.TempDir()
			pool := pgtest.Connect(t, url)
			_, err = pool.Exec(t.Context(), `create table orders (no int primary key)`)
			is.NoErr(err)
			cmd := run(t, dir, program)
			cmd.Dir, cmd.Env = dir, append(os.Environ(), "URL="+url, "PGPASSWORD="+pool.Config().ConnConfig.Password)
			if out, err := cmd.CombinedOutput(); err != nil {
				t.Fatalf("%v: %s", err, out)
			}
			var stored string
			is.NoErr(pool.QueryRow(t.Context(), `select string_agg(o.no || j.kind || j.args::text, ' ') from orders o, trapeze.job j`).Scan(&stored))
			is.Equal(strings.ReplaceAll(stored, " ", ""), `7mail{"order":7}`)
		})
	}
}
