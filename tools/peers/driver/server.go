package main

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
)

// server is a temporary PostgreSQL server.
type server struct {
	programs, dir, port string
	pid                 string // PID of the postmaster
	version             string
	suffix              string // appended to the names of peers on this server: empty for the first server, "@18" or similar for the second
}

// cleanup stops the servers and removes their directories.
var cleanup = func() {}

// clients is the directory that contains psql and pgbench for all servers, because the packages for other versions contain neither.
var clients string

func die(err error, out []byte) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err, string(out))
		cleanup()
		os.Exit(1)
	}
}

func findPG() string {
	if v := os.Getenv("PGBIN"); v != "" {
		return v
	}
	if m, _ := filepath.Glob("/usr/lib/postgresql/*/bin"); len(m) > 0 { // where Debian installs PostgreSQL
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

// freePort returns an unused port on the loopback interface.
func freePort() string {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	die(err, nil)
	defer l.Close()
	return strconv.Itoa(l.Addr().(*net.TCPAddr).Port)
}

// startServer starts the nth PostgreSQL server, counted from 0, in a temporary directory.
func startServer(programs string, nth int) *server {
	s := &server{programs: programs, port: freePort()}
	s.dir, _ = os.MkdirTemp("", "benchpg")
	os.Chmod(s.dir, 0o755)
	if u, _ := user.Current(); u != nil && u.Uid == "0" {
		die(exec.Command("chown", "postgres", s.dir).Run(), nil)
	}
	d := s.dir + "/d"
	others := cleanup
	cleanup = func() { others(); asPG(programs + "/pg_ctl -D " + d + " -m immediate stop"); os.RemoveAll(s.dir) }
	out, err := asPG(programs + "/initdb -D " + d + " -A trust -U postgres -E UTF8 --no-sync")
	die(err, out)
	conf := "fsync=on\nsynchronous_commit=on\nshared_buffers=1GB\nmax_connections=200\nwal_compression=on\nport=" + s.port +
		"\nlisten_addresses='127.0.0.1'\nunix_socket_directories='" + s.dir + "'\n"
	out, err = asPG("cat >> " + d + "/postgresql.conf <<'E'\n" + conf + "E\n" + programs + "/pg_ctl -D " + d + " -w -l " + s.dir + "/log start >/dev/null")
	die(err, out)
	if nth == 0 {
		clients = programs
		interrupted := make(chan os.Signal, 1)
		signal.Notify(interrupted, os.Interrupt, syscall.SIGTERM)
		go func() {
			<-interrupted
			cleanup()
			os.Exit(130)
		}()
	}
	pid, _ := os.ReadFile(d + "/postmaster.pid")
	s.pid, _, _ = strings.Cut(string(pid), "\n")
	out, err = exec.Command(programs+"/postgres", "--version").Output()
	die(err, out)
	s.version = strings.Fields(string(out))[2]
	if nth > 0 {
		major, _, _ := strings.Cut(s.version, ".")
		s.suffix = "@" + major
	}
	return s
}

func (s *server) url(db string) string {
	return "postgres://postgres@127.0.0.1:" + s.port + "/" + db + "?sslmode=disable"
}

func (s *server) psql(db, sql string) {
	out, err := exec.Command(clients+"/psql", "-qX", "-v", "ON_ERROR_STOP=1", "-d", s.url(db), "-c", sql).CombinedOutput()
	die(err, out)
}

func (s *server) fresh(template string) {
	s.psql("postgres", "drop database if exists b1 with (force)")
	s.psql("postgres", "create database b1 template "+template)
}

// pgbench returns how many commits per second n clients achieve if each inserts one row at a time for five seconds. No program that commits
// every row separately can be faster on this machine.
func (s *server) pgbench(n string) (float64, error) {
	script := filepath.Join(s.dir, "floor.sql")
	if err := os.WriteFile(script, []byte("insert into floor values (1);\n"), 0o644); err != nil {
		return 0, err
	}
	out, err := exec.Command(clients+"/pgbench", "-n", "-M", "prepared", "-f", script, "-c", n, "-j", "2", "-T", "5", s.url("b1")).CombinedOutput()
	if err != nil {
		return 0, fmt.Errorf("pgbench: %w %s", err, tail(string(out)))
	}
	_, rate, _ := strings.Cut(string(out), "\ntps = ")
	rate, _, _ = strings.Cut(rate, " ")
	return strconv.ParseFloat(rate, 64)
}
