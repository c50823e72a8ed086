package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
)

// tick is the unit of the times in Linux's /proc/PID/stat. It is the same on all machines (see USER_HZ in proc_pid_stat(5)).
const tick = 10 * time.Millisecond

// serverCPU returns the CPU time used by the server's processes, including those that have exited. known is true only if the server runs on
// this machine and the system is Linux.
func (b *lab) serverCPU(ctx context.Context) (used time.Duration, known bool) {
	postmaster, ok := b.postmaster(ctx)
	if !ok {
		return 0, false
	}
	all, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		return 0, false
	}
	for _, dir := range all {
		p, ok := readProcess(dir)
		switch {
		case !ok: // the process has exited
		case p.pid == postmaster:
			used, known = used+p.own+p.children, true
		case p.parent == postmaster:
			used += p.own
		}
	}
	return used, known
}

// postmaster returns the ID of the server's parent process if the server runs on this machine.
func (b *lab) postmaster(ctx context.Context) (pid int, ok bool) {
	conn, err := pgx.Connect(ctx, b.url)
	if err != nil {
		return 0, false
	}
	defer conn.Close(ctx)
	var session int
	var name string
	if err := conn.QueryRow(ctx, `select pg_backend_pid(), current_database()`).Scan(&session, &name); err != nil {
		return 0, false
	}
	title, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", session))
	if err != nil || !strings.Contains(string(title), "postgres") || !strings.Contains(string(title), name) {
		return 0, false
	}
	p, ok := readProcess(fmt.Sprintf("/proc/%d", session))
	return p.parent, ok
}

// process holds the relevant fields of /proc/PID/stat.
type process struct {
	pid, parent   int
	own, children time.Duration // CPU time; children counts child processes that have exited and were waited for
	threads       time.Duration // CPU time of all threads, in multiples of a tick
}

// readProcess reads a process from /proc/PID.
func readProcess(dir string) (p process, ok bool) {
	text, err := os.ReadFile(filepath.Join(dir, "stat"))
	if err != nil {
		return p, false
	}
	name := strings.LastIndex(string(text), ") ") // the program name is in parentheses and may contain any character
	if name < 0 {
		return p, false
	}
	// fields[0] is field 3 (state) in the manual.
	fields := strings.Fields(string(text[name+2:]))
	if len(fields) < 15 {
		return p, false
	}
	number := func(s string) (n int) {
		n, failed := strconv.Atoi(s)
		err = errors.Join(err, failed)
		return n
	}
	p.pid, p.parent = number(filepath.Base(dir)), number(fields[1])
	p.threads = time.Duration(number(fields[11])+number(fields[12])) * tick
	p.own = p.threads
	p.children = time.Duration(number(fields[13])+number(fields[14])) * tick
	// A server process has a single thread, so the first number is its total CPU time in nanoseconds.
	if exact, err := os.ReadFile(filepath.Join(dir, "schedstat")); err == nil {
		if running, _, ok := strings.Cut(string(exact), " "); ok {
			p.own = time.Duration(number(running))
		}
	}
	return p, err == nil
}
