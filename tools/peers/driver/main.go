// Command driver starts a temporary PostgreSQL server, runs each peer with each workload in alternating rounds, and prints JSON lines and a
// readable table. See ../README.md.
package main

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"sort"
	"strconv"
	"strings"
	"time"
)

type set map[string]string // the environment variables of one cell

// cells holds each cell's environment, by peer and workload. A workload that is not listed for a peer is skipped.
var cells = map[string]map[string]set{
	"river": {"W1": {"N": "100000", "WORKERS": "1000"}, "W2": {"N": "100000"}, "W2T": {"N": "100000", "BATCH": "1000"}, "W3": {"N": "500"}, "W4L": {"N": "200"},
		"W4C": {"N": "2000", "WORKERS": "1000"}, "W4T": {"N": "2000", "WORKERS": "1000"}, "W5": {"N": "1000000", "WORKERS": "1000"}, "W6": {"N": "2000"}, "W6L": {"N": "40000", "WORKLOAD": "W6"}},
	"river-tx": {"W4L": {"N": "200", "RIVER_TX": "1"}, "W4C": {"N": "2000", "WORKERS": "1000", "RIVER_TX": "1"}},
	"gue": {"W1": {"N": "20000", "WORKERS": "32"}, "W2": {"N": "20000"}, "W3": {"N": "200", "WORKERS": "20"}, "W4L": {"N": "200", "WORKERS": "20"},
		"W4C": {"N": "2000", "WORKERS": "32"}, "W5": {"N": "1000000", "WORKERS": "32"}, "W6": {"N": "2000"}},
	"graphile":         {"W1": {"N": "100000"}, "W2": {"N": "100000"}, "W3": {"N": "500"}, "W4L": {"N": "200"}, "W4C": {"N": "2000"}, "W5": {"N": "1000000"}, "W6": {"N": "2000"}, "W6L": {"N": "40000", "WORKLOAD": "W6"}},
	"graphile-default": {"W1": {"N": "20000"}, "W3": {"N": "200"}, "W4L": {"N": "200"}, "W4C": {"N": "1000"}, "W6": {"N": "2000"}},
	"pgboss":           {"W1": {"N": "100000"}, "W2": {"N": "100000"}, "W3": {"N": "500"}, "W4L": {"N": "200"}, "W4C": {"N": "2000"}, "W5": {"N": "1000000"}, "W6": {"N": "2000"}},
	"dbos":             {"W1": {"N": "3000"}, "W2": {"N": "5000"}, "W3": {"N": "300"}, "W4L": {"N": "200"}, "W4C": {"N": "2000"}, "W6": {"N": "2000"}},
	"hatchet":          {"W1": {"N": "5000", "WORKERS": "1000"}, "W2": {"N": "10000", "BATCH": "1000"}, "W3": {"N": "200"}, "W4L": {"N": "100"}, "W4C": {"N": "500", "WORKERS": "1000"}, "W6": {"N": "1000"}},
	"trapeze": {"W1": {"N": "100000", "WORKERS": "2000"}, "W2": {"N": "100000"}, "W2T": {"N": "100000", "BATCH": "1000"}, "W3": {"N": "500"}, "W4L": {"N": "200"},
		"W4C": {"N": "2000", "WORKERS": "2000"}, "W4T": {"N": "2000", "WORKERS": "2000"}, "W5": {"N": "1000000", "WORKERS": "2000"}, "W6": {"N": "2000"}, "W6L": {"N": "40000", "WORKLOAD": "W6"}},
	"trapeze-write": {"W4T": {"N": "2000", "WORKERS": "2000", "WRITE": "1"}},
}

// preload contains SQL that inserts the backlog for peers whose API would be too slow.
var preload = map[string]string{
	"river": `insert into river_job(args,kind,max_attempts,priority,queue,scheduled_at,state) select '{"chain":1,"step":-1,"t":0}','noop',25,1,'default',now(),'available' from generate_series(1,%s)`,
	"gue":   `insert into gue_jobs select lpad(i::text,26,'0'),0,now(),'noop','{"chain":1,"step":-1,"t":0}'::bytea,0,null,'q',now(),now() from generate_series(1,%s) i`,
}

func main() {
	peers := flag.String("peers", "trapeze,trapeze-write,river,river-tx,gue,graphile,graphile-default,pgboss,dbos,hatchet", "peers to run; those without a built adapter are skipped")
	wl := flag.String("workloads", "W1,W2,W2T,W3,W4L,W4C,W4T,W5,W6,W6L", "")
	rounds := flag.Int("rounds", 3, "")
	extra := flag.String("extra", "", "name=path[,name=path] further adapters")
	outf := flag.String("out", "", "JSON lines file")
	base := flag.String("base", "river", "peer that the ratios refer to")
	bin := flag.String("bin", "bin", "folder of adapter executables")
	pgbin := flag.String("pgbin", findPG(), "folder of initdb, pg_ctl, psql (or env PGBIN)")
	also := flag.String("also", "", "folder of the programs of another major version of PostgreSQL, to run some peers on as well: trapeze@18")
	alsoPeers := flag.String("also-peers", "trapeze,trapeze-write", "peers that -also runs")
	flag.Parse()
	b := bench{path: map[string]string{}, lines: os.Stdout, made: map[string]bool{}, res: results{}}
	b.find(*peers, *extra, *bin)
	if *outf != "" {
		var err error
		b.lines, err = os.Create(*outf)
		die(err, nil)
	}
	b.serve(*pgbin, "")
	if *also != "" {
		b.serve(*also, *alsoPeers)
	}
	defer cleanup()
	workloads := strings.Split(*wl, ",")
	for r := range *rounds {
		for _, s := range b.servers {
			b.floor(s, r)
		}
		for _, work := range workloads {
			for i := range b.names {
				b.cell(b.names[(i+r)%len(b.names)], work, r)
			}
		}
	}
	table(b.res, workloads, b.names, *base)
	var floors []string
	for _, s := range b.servers {
		floors = append(floors, "pgbench"+s.suffix)
	}
	table(b.res, []string{"floor"}, floors, floors[0])
}

type results map[string]map[string]map[string][]float64 // by workload, peer and metric

// bench runs the adapters on one server and, if requested, some of them also on a second server with a different version.
type bench struct {
	names   []string          // peers in the order of the first round; the names of peers on the second server end with its suffix
	path    map[string]string // adapter executables by peer
	servers []*server
	lines   *os.File
	made    map[string]bool // peers whose W5 backlog exists
	res     results
}

// serve starts a server and adds the comma-separated peers that run on it.
func (b *bench) serve(programs, peers string) {
	s := startServer(programs, len(b.servers))
	b.servers = append(b.servers, s)
	for p := range strings.SplitSeq(peers, ",") {
		if path, ok := b.path[p]; ok {
			b.names = append(b.names, p+s.suffix)
			b.path[p+s.suffix] = path
		}
	}
}

// of returns a peer's server, and the peer's name without the server suffix.
func (b *bench) of(peer string) (*server, string) {
	name, _, second := strings.Cut(peer, "@")
	if second {
		return b.servers[1], name
	}
	return b.servers[0], name
}

// find locates the adapters of the peers, including the extra ones.
func (b *bench) find(peers, extra, bin string) {
	for _, p := range strings.Split(peers, ",") {
		if p == "" {
			continue
		}
		exe, _, _ := strings.Cut(p, "-") // the rest of the name selects a variant of the program
		path, _ := filepath.Abs(filepath.Join(bin, exe))
		if _, err := os.Stat(path); err != nil {
			fmt.Fprintln(os.Stderr, "left out, for its adapter is not built:", p)
			continue
		}
		b.names = append(b.names, p)
		b.path[p] = path
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

// run runs an adapter and returns the last line of its output.
func (b *bench) run(peer, db, work string, env set) map[string]any {
	s, name := b.of(peer)
	c := exec.Command("timeout", "240", b.path[peer])
	c.Env = append(os.Environ(), "DATABASE_URL="+s.url(db), "WORKLOAD="+work, "PGPID="+s.pid)
	if strings.HasSuffix(name, "-default") {
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

// floor measures the server's maximum commit rate for a round.
func (b *bench) floor(s *server, round int) {
	s.fresh("template1")
	s.psql("b1", "create table floor (n int)")
	m := map[string]any{}
	for _, clients := range []string{"1", "32"} {
		rate, err := s.pgbench(clients)
		if err != nil {
			m["error"] = err.Error()
			break
		}
		m["commits_per_s_c"+clients] = rate
	}
	b.note("pgbench"+s.suffix, "floor", round, m)
}

// cell runs one workload with one peer in a fresh database. It skips workloads that are not listed for the peer.
func (b *bench) cell(peer, work string, round int) {
	s, name := b.of(peer)
	env, ok := cells[name][work]
	if !ok {
		return
	}
	tmpl, e := "template1", maps.Clone(env)
	if work == "W5" { // the backlog is built once per peer and copied for each round
		tmpl = "t_" + strings.ReplaceAll(name, "-", "_")
		if !b.made[peer] {
			b.made[peer] = true
			b.backlog(peer, tmpl, env)
		}
		e["PRELOAD_SQL"] = "1"
	}
	s.fresh(tmpl)
	s.psql("postgres", "checkpoint")
	b.note(peer, work, round, b.run(peer, "b1", work, e))
}

func (b *bench) backlog(peer, db string, env set) {
	s, name := b.of(peer)
	s.psql("postgres", "create database "+db)
	if q, ok := preload[name]; ok {
		b.run(peer, db, "W2", set{"N": "1"})
		s.psql(db, fmt.Sprintf(q, env["N"]))
	} else {
		b.run(peer, db, "W2", env)
	}
	s.psql(db, "vacuum analyze")
}

// note prints a cell's output line and keeps its figures for the table.
func (b *bench) note(peer, work string, round int, m map[string]any) {
	s, _ := b.of(peer)
	m["peer"], m["workload"], m["round"], m["postgres"] = peer, work, round, s.version
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
	"W5":  {"rate", "pg_cpu_us_per_job", "app_cpu_us_per_job"},
	"W6":  {"rate", "rollbacks", "xact_per_job", "pg_cpu_us_per_job", "app_cpu_us_per_job"},
	"W6L": {"rate", "rollbacks", "xact_per_job", "pg_cpu_us_per_job", "app_cpu_us_per_job"},

	"floor": {"commits_per_s_c1", "commits_per_s_c32"},
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
