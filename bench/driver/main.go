// Driver: starts a throw-away PostgreSQL, runs peers x workloads in alternating rounds,
// prints JSON lines and a readable table. See ../README.md.
package main

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"os/signal"
	"os/user"
	"path/filepath"
	"sort"
	"strconv"
	"strings"
	"syscall"
	"time"
)

type set map[string]string // env of one cell

// cells[peer][workload]; a missing workload is not run for that peer.
var cells = map[string]map[string]set{
	"river": {"W1": {"N": "100000", "WORKERS": "1000"}, "W2": {"N": "100000"}, "W2T": {"N": "100000", "BATCH": "1000"}, "W3": {"N": "500"}, "W4L": {"N": "200"},
		"W4C": {"N": "2000", "WORKERS": "1000"}, "W4T": {"N": "2000", "WORKERS": "1000"}, "W5": {"N": "1000000", "WORKERS": "1000"}, "W6": {"N": "2000"}},
	"river-tx": {"W4L": {"N": "200", "RIVER_TX": "1"}, "W4C": {"N": "2000", "WORKERS": "1000", "RIVER_TX": "1"}},
	"gue": {"W1": {"N": "20000", "WORKERS": "32"}, "W2": {"N": "20000"}, "W3": {"N": "200", "WORKERS": "20"}, "W4L": {"N": "200", "WORKERS": "20"},
		"W4C": {"N": "2000", "WORKERS": "32"}, "W5": {"N": "1000000", "WORKERS": "32"}, "W6": {"N": "2000"}},
	"graphile":         {"W1": {"N": "100000"}, "W2": {"N": "100000"}, "W3": {"N": "500"}, "W4L": {"N": "200"}, "W4C": {"N": "2000"}, "W5": {"N": "1000000"}, "W6": {"N": "2000"}},
	"graphile-default": {"W1": {"N": "20000"}, "W3": {"N": "200"}, "W4L": {"N": "200"}, "W4C": {"N": "1000"}, "W6": {"N": "2000"}},
	"pgboss":           {"W1": {"N": "100000"}, "W2": {"N": "100000"}, "W3": {"N": "500"}, "W4L": {"N": "200"}, "W4C": {"N": "2000"}, "W5": {"N": "1000000"}, "W6": {"N": "2000"}},
	"dbos":             {"W1": {"N": "3000"}, "W2": {"N": "5000"}, "W3": {"N": "300"}, "W4L": {"N": "200"}, "W4C": {"N": "2000"}, "W6": {"N": "2000"}},
	"trapeze": {"W1": {"N": "100000", "WORKERS": "2000"}, "W2": {"N": "100000"}, "W2T": {"N": "100000", "BATCH": "1000"}, "W3": {"N": "500"}, "W4L": {"N": "200"},
		"W4C": {"N": "2000", "WORKERS": "2000"}, "W4T": {"N": "2000", "WORKERS": "2000"}, "W5": {"N": "1000000", "WORKERS": "2000"}, "W6": {"N": "2000"}},
	"trapeze-write": {"W4T": {"N": "2000", "WORKERS": "2000", "WRITE": "1"}},
}

// a backlog too slow to build through the peer's own API is inserted by SQL
var preload = map[string]string{
	"river": `insert into river_job(args,kind,max_attempts,priority,queue,scheduled_at,state) select '{"chain":1,"step":-1,"t":0}','noop',25,1,'default',now(),'available' from generate_series(1,%s)`,
	"gue":   `insert into gue_jobs select lpad(i::text,26,'0'),0,now(),'noop','{"chain":1,"step":-1,"t":0}'::bytea,0,null,'q',now(),now() from generate_series(1,%s) i`,
}

func die(err error, out []byte) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err, string(out))
		cleanup()
		os.Exit(1)
	}
}

var pgbin, dir string
var cleanup = func() {}
var port = "55499"

func findPG() string {
	if v := os.Getenv("PGBIN"); v != "" {
		return v
	}
	if m, _ := filepath.Glob("/usr/lib/postgresql/*/bin"); len(m) > 0 { // Debian's place
		return m[len(m)-1]
	}
	p, _ := exec.LookPath("initdb")
	return filepath.Dir(p)
}

func asPG(cmd string) ([]byte, error) {
	if u, _ := user.Current(); u != nil && u.Uid == "0" {
		return exec.Command("su", "postgres", "-s", "/bin/sh", "-c", cmd).CombinedOutput()
	}
	return exec.Command("/bin/sh", "-c", cmd).CombinedOutput()
}
func psql(db, sql string) {
	out, err := exec.Command(pgbin+"/psql", "-h", "127.0.0.1", "-p", port, "-U", "postgres", "-qX", "-v", "ON_ERROR_STOP=1", "-d", db, "-c", sql).CombinedOutput()
	die(err, out)
}

func main() {
	peers := flag.String("peers", "trapeze,trapeze-write,river,river-tx,gue,graphile,graphile-default,pgboss,dbos", "")
	wl := flag.String("workloads", "W1,W2,W2T,W3,W4L,W4C,W4T,W5,W6", "")
	rounds := flag.Int("rounds", 3, "")
	extra := flag.String("extra", "", "name=path[,name=path] further adapters")
	outf := flag.String("out", "", "JSON lines file")
	base := flag.String("base", "river", "peer the ratios refer to")
	bin := flag.String("bin", "bin", "folder of adapter executables")
	flag.StringVar(&pgbin, "pgbin", findPG(), "folder of initdb, pg_ctl, psql (or env PGBIN)")
	flag.Parse()
	b := bench{path: map[string]string{}, lines: os.Stdout, made: map[string]bool{}, res: results{}}
	b.find(*peers, *extra, *bin)
	if *outf != "" {
		var err error
		b.lines, err = os.Create(*outf)
		die(err, nil)
	}
	b.serve()
	defer cleanup()
	workloads := strings.Split(*wl, ",")
	for r := range *rounds {
		b.floor(r)
		for _, work := range workloads {
			for i := range b.names {
				b.cell(b.names[(i+r)%len(b.names)], work, r)
			}
		}
	}
	table(b.res, workloads, b.names, *base)
	table(b.res, []string{"floor"}, []string{"pgbench"}, *base)
}

type results map[string]map[string]map[string][]float64 // by workload, peer and metric

// bench runs adapters on one server.
type bench struct {
	names []string          // of the peers, in the order of the first round
	path  map[string]string // of a peer's adapter
	pgpid string
	lines *os.File
	made  map[string]bool // backlogs of W5, by peer
	res   results
}

// find finds the adapters of the peers, and of further ones.
func (b *bench) find(peers, extra, bin string) {
	for _, p := range strings.Split(peers, ",") {
		if p == "" {
			continue
		}
		b.names = append(b.names, p)
		exe, _, _ := strings.Cut(p, "-") // what follows is a form of the same program
		b.path[p], _ = filepath.Abs(filepath.Join(bin, exe))
	}
	for _, e := range strings.Split(extra, ",") {
		if k, v, ok := strings.Cut(e, "="); ok {
			b.names = append(b.names, k)
			b.path[k] = v
			if cells[k] == nil {
				cells[k] = cells["trapeze"]
			}
		}
	}
}

// serve starts a PostgreSQL in a temporary folder; cleanup ends and removes it.
func (b *bench) serve() {
	dir, _ = os.MkdirTemp("", "benchpg")
	os.Chmod(dir, 0o755)
	if u, _ := user.Current(); u != nil && u.Uid == "0" {
		die(exec.Command("chown", "postgres", dir).Run(), nil)
	}
	d := dir + "/d"
	out, err := asPG(pgbin + "/initdb -D " + d + " -A trust -U postgres -E UTF8 --no-sync")
	die(err, out)
	conf := "fsync=on\nsynchronous_commit=on\nshared_buffers=1GB\nmax_connections=200\nwal_compression=on\nport=" + port +
		"\nlisten_addresses='127.0.0.1'\nunix_socket_directories='" + dir + "'\n"
	out, err = asPG("cat >> " + d + "/postgresql.conf <<'E'\n" + conf + "E\n" + pgbin + "/pg_ctl -D " + d + " -w -l " + dir + "/log start >/dev/null")
	die(err, out)
	cleanup = func() { asPG(pgbin + "/pg_ctl -D " + d + " -m immediate stop"); os.RemoveAll(dir) }
	interrupted := make(chan os.Signal, 1)
	signal.Notify(interrupted, os.Interrupt, syscall.SIGTERM)
	go func() {
		<-interrupted
		cleanup()
		os.Exit(130)
	}()
	pid, _ := os.ReadFile(d + "/postmaster.pid")
	b.pgpid = strings.SplitN(string(pid), "\n", 2)[0]
}

// run runs an adapter and returns the line that it printed last.
func (b *bench) run(peer, db, work string, env set) map[string]any {
	c := exec.Command("timeout", "240", b.path[peer])
	c.Env = append(os.Environ(), "DATABASE_URL=postgres://postgres@127.0.0.1:"+port+"/"+db+"?sslmode=disable", "WORKLOAD="+work, "PGPID="+b.pgpid)
	if strings.HasSuffix(peer, "-default") {
		c.Env = append(c.Env, "GW_MODE=default")
	}
	for k, v := range env {
		c.Env = append(c.Env, k+"="+v)
	}
	var so, se bytes.Buffer
	c.Stdout, c.Stderr = &so, &se
	err := c.Run()
	ls := strings.Split(strings.TrimSpace(so.String()), "\n")
	var m map[string]any
	if json.Unmarshal([]byte(ls[len(ls)-1]), &m) != nil {
		return map[string]any{"error": fmt.Sprint(err, " ", tail(se.String()))}
	}
	return m
}

// floor measures the floor of a round.
func (b *bench) floor(round int) {
	fresh("template1")
	psql("b1", "create table floor (n int)")
	m := map[string]any{}
	for _, clients := range []string{"1", "32"} {
		rate, err := pgbench(clients)
		if err != nil {
			m["error"] = err.Error()
			break
		}
		m["commits_per_s_c"+clients] = rate
	}
	b.note("pgbench", "floor", round, m)
}

// cell runs one workload of one peer, if it has that, in a fresh database.
func (b *bench) cell(peer, work string, round int) {
	env, ok := cells[peer][work]
	if !ok {
		return
	}
	tmpl, e := "template1", maps.Clone(env)
	if work == "W5" { // backlog built once per peer, copied per round
		tmpl = "t_" + strings.ReplaceAll(peer, "-", "_")
		if !b.made[peer] {
			b.made[peer] = true
			b.backlog(peer, tmpl, env)
		}
		e["PRELOAD_SQL"] = "1"
	}
	fresh(tmpl)
	psql("postgres", "checkpoint")
	b.note(peer, work, round, b.run(peer, "b1", work, e))
}

func (b *bench) backlog(peer, db string, env set) {
	psql("postgres", "create database "+db)
	if q, ok := preload[peer]; ok {
		b.run(peer, db, "W2", set{"N": "1"})
		psql(db, fmt.Sprintf(q, env["N"]))
	} else {
		b.run(peer, db, "W2", env)
	}
	psql(db, "vacuum analyze")
}

func fresh(template string) {
	psql("postgres", "drop database if exists b1 with (force)")
	psql("postgres", "create database b1 template "+template)
}

// note writes the line of a cell, and keeps its figures for the table.
func (b *bench) note(peer, work string, round int, m map[string]any) {
	m["peer"], m["workload"], m["round"] = peer, work, round
	m["at"] = time.Now().UTC().Format(time.RFC3339)
	j, _ := json.Marshal(m)
	fmt.Fprintln(b.lines, string(j))
	if b.res[work] == nil {
		b.res[work] = map[string]map[string][]float64{}
	}
	if b.res[work][peer] == nil {
		b.res[work][peer] = map[string][]float64{}
	}
	flat("", m, b.res[work][peer])
}

// pgbench returns the commits a second of so many clients that insert one row each time, over five seconds: what no program that commits
// by itself can exceed on this machine.
func pgbench(clients string) (float64, error) {
	script := filepath.Join(dir, "floor.sql")
	if err := os.WriteFile(script, []byte("insert into floor values (1);\n"), 0o644); err != nil {
		return 0, err
	}
	out, err := exec.Command(pgbin+"/pgbench", "-h", "127.0.0.1", "-p", port, "-U", "postgres", "-n", "-M", "prepared", "-f", script, "-c", clients, "-j", "2",
		"-T", "5", "b1").CombinedOutput()
	if err != nil {
		return 0, fmt.Errorf("pgbench: %w %s", err, tail(string(out)))
	}
	_, rate, _ := strings.Cut(string(out), "\ntps = ")
	rate, _, _ = strings.Cut(rate, " ")
	return strconv.ParseFloat(rate, 64)
}

func tail(s string) string {
	if len(s) > 400 {
		s = s[len(s)-400:]
	}
	return s
}

func flat(pre string, m map[string]any, o map[string][]float64) {
	for k, v := range m {
		switch x := v.(type) {
		case float64:
			o[pre+k] = append(o[pre+k], x)
		case map[string]any:
			flat(pre+k+".", x, o)
		}
	}
}

var shown = map[string][]string{
	"W1":  {"rate", "xact_per_job", "wxact_per_job", "wal_per_job", "pg_cpu_us_per_job", "app_cpu_us_per_job"},
	"W2":  {"rate", "wal_per_job", "pg_cpu_us_per_job", "app_cpu_us_per_job"},
	"W2T": {"rate", "wal_per_job", "pg_cpu_us_per_job", "app_cpu_us_per_job"},
	"W3":  {"latency_ms.p50", "latency_ms.p95", "latency_ms.p99"},
	"W4L": {"gap_ms.p50", "gap_ms.p95", "gap_ms.p99", "chain_ms.p50", "chain_ms.p95", "chain_ms.p99"},
	"W4C": {"chains_per_s", "xact_per_job", "wxact_per_job", "wal_per_job", "pg_cpu_us_per_job", "app_cpu_us_per_job"},
	"W4T": {"chains_per_s", "xact_per_job", "wxact_per_job", "wal_per_job", "pg_cpu_us_per_job", "app_cpu_us_per_job"},
	"W5":  {"rate"},

	"floor": {"commits_per_s_c1", "commits_per_s_c32"},
	"W6":    {"rate", "rollbacks", "xact_per_job"},
}

func med(v []float64) (m, lo, hi float64) {
	s := append([]float64(nil), v...)
	sort.Float64s(s)
	return (s[len(s)/2] + s[(len(s)-1)/2]) / 2, s[0], s[len(s)-1]
}
func f(x float64) string {
	switch {
	case x >= 100:
		return strconv.FormatFloat(x, 'f', 0, 64)
	case x >= 10:
		return strconv.FormatFloat(x, 'f', 1, 64)
	}
	return strconv.FormatFloat(x, 'f', 3, 64)
}

func table(res results, wls, names []string, base string) {
	for _, w := range wls {
		if res[w] == nil {
			continue
		}
		ms := shown[w]
		fmt.Printf("\n### %s (median [min–max]; first metric also as ratio to %s)\n| peer | %s | x |\n|---|%s---|\n", w, base, strings.Join(ms, " | "), strings.Repeat("---|", len(ms)))
		for _, p := range names {
			v := res[w][p]
			if v == nil {
				continue
			}
			row := "| " + p + " |"
			for _, m := range ms {
				if len(v[m]) == 0 {
					row += " – |"
					continue
				}
				a, lo, hi := med(v[m])
				row += fmt.Sprintf(" %s [%s–%s] |", f(a), f(lo), f(hi))
			}
			rat := "–"
			if b := res[w][base][ms[0]]; len(b) > 0 && len(v[ms[0]]) > 0 {
				x, _, _ := med(v[ms[0]])
				y, _, _ := med(b)
				rat = fmt.Sprintf("%.2f", x/y)
			}
			fmt.Println(row, rat, "|")
		}
	}
}
