package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/trapeze-run/trapeze/runner"
)

// pooler measures the cost of a transaction pooler between the pod and the server.
func (b *lab) pooler(ctx context.Context) (l line, err error) {
	rounds, jobs, chains := 3, b.size(30_000), b.size(150)
	l = line{What: fmt.Sprintf("directly, and with the pool through PgBouncer in transaction mode and the direct URL to the server: drain of %d no-op jobs (100 slots), and the gap between the steps of %d chains of five on an idle pod, medians of %d alternating rounds", jobs, chains, rounds),
		Goal: "no target set; everything works at a known cost"}
	bouncer, err := b.startPgbouncer(ctx)
	if errors.Is(err, errNoPgbouncer) {
		l.What = notInstalled
		return l, nil
	}
	if err != nil {
		return l, err
	}
	defer bouncer.stop()
	routes := []route{{}, {via: bouncer}}
	var drains, p50s, p99s [2][]float64
	for round := range rounds {
		for i, w := range routes {
			b.printf("pooler: round %d, %s", round+1, []string{"direct", "through pgbouncer"}[i])
			rate, err := b.drainOn(ctx, w, jobs)
			if err != nil {
				return l, err
			}
			gaps, err := b.gapsOn(ctx, w, chains)
			if err != nil {
				return l, err
			}
			drains[i] = append(drains[i], rate)
			p50s[i], p99s[i] = append(p50s[i], quantile(gaps, 0.50)), append(p99s[i], quantile(gaps, 0.99))
		}
	}
	for _, figure := range []struct {
		name string
		of   [2][]float64
	}{{"drain jobs/s", drains}, {"hand-off gap ms p50", p50s}, {"hand-off gap ms p99", p99s}} {
		direct, through := median(figure.of[0]), median(figure.of[1])
		l.set(figure.name+" direct", direct)
		l.set(figure.name+" pgbouncer", through)
		l.set(figure.name+" ratio", through/direct)
	}
	return l, nil
}

// drainOn returns the rate in jobs per second at which a pod with 100 slots drains a backlog of no-op jobs.
func (b *lab) drainOn(ctx context.Context, w route, n int) (float64, error) {
	g, err := b.rigOn(ctx, w, runner.Options{Slots: 100})
	if err != nil {
		return 0, err
	}
	defer g.close()
	runner.Handle(g.r, func(context.Context, *runner.Job[noop]) (*runner.Outcome, error) { return nil, nil })
	if _, err := g.r.EnqueueMany(ctx, copies(noop{}, n)); err != nil {
		return 0, err
	}
	if err := g.tidy(ctx); err != nil {
		return 0, err
	}
	began := time.Now()
	g.start(ctx)
	if err := g.drained(ctx); err != nil {
		return 0, err
	}
	rate := float64(n) / time.Since(began).Seconds()
	return rate, g.succeeded(ctx, n)
}

// gapsOn runs chains of five steps, one at a time. It returns the times between the starts of consecutive steps in milliseconds, sorted.
func (b *lab) gapsOn(ctx context.Context, w route, n int) (gaps []float64, err error) {
	g, err := b.rigOn(ctx, w, runner.Options{})
	if err != nil {
		return nil, err
	}
	defer g.close()
	steps := make(chan time.Time, 5)
	runner.Handle(g.r, func(_ context.Context, j *runner.Job[step]) (*runner.Outcome, error) {
		steps <- time.Now()
		if j.Args.Left == 0 {
			return nil, nil
		}
		return runner.Then(step{Left: j.Args.Left - 1}), nil
	})
	g.start(ctx)
	for range n {
		if _, err := g.r.Enqueue(ctx, step{Left: 4}); err != nil {
			return nil, err
		}
		var before time.Time
		for i := range 5 {
			select {
			case at := <-steps:
				if i > 0 {
					gaps = append(gaps, ms(at.Sub(before)))
				}
				before = at
			case <-ctx.Done():
				return nil, ctx.Err()
			}
		}
		if err := g.drained(ctx); err != nil {
			return nil, err
		}
	}
	slices.Sort(gaps)
	return gaps, g.succeeded(ctx, 5*n)
}

func median(values []float64) float64 { return quantile(slices.Sorted(slices.Values(values)), 0.5) }

// pgbouncer is a PgBouncer in transaction mode in front of the lab's server, with the default of 20 connections to each database.
type pgbouncer struct {
	address string
	cmd     *exec.Cmd
	said    bytes.Buffer
	ended   chan struct{}
}

const pgbouncerFile = `[databases]
* = host=%s port=%d user=%s%s
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = %s
unix_socket_dir =
auth_type = any
pool_mode = transaction
`

// notInstalled is the result of a workload that requires PgBouncer if PgBouncer is not installed.
const notInstalled = "not measured: there is no pgbouncer on this machine"

// errNoPgbouncer means that PgBouncer is not installed on this machine.
var errNoPgbouncer = errors.New("pgbouncer is not installed")

// startPgbouncer starts PgBouncer. It returns errNoPgbouncer if PgBouncer is not installed.
func (b *lab) startPgbouncer(ctx context.Context) (_ *pgbouncer, err error) {
	bin, err := exec.LookPath("pgbouncer")
	if err != nil {
		if bin, err = exec.LookPath("/usr/sbin/pgbouncer"); err != nil {
			return nil, errNoPgbouncer
		}
	}
	server, err := pgconn.ParseConfig(b.url)
	if err != nil {
		return nil, err
	}
	p := &pgbouncer{ended: make(chan struct{})}
	if p.address, err = freeAddress(); err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("", "trapeze-bench-pgbouncer-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir) // PgBouncer reads its configuration only once, before it starts listening
	password := ""
	if server.Password != "" {
		password = " password='" + strings.ReplaceAll(server.Password, "'", "''") + "'"
	}
	_, port, _ := net.SplitHostPort(p.address)
	file := filepath.Join(dir, "pgbouncer.ini")
	if err := os.WriteFile(file, fmt.Appendf(nil, pgbouncerFile, server.Host, server.Port, server.User, password, port), 0o600); err != nil {
		return nil, err
	}
	args := []string{"-q", file}
	if os.Geteuid() == 0 {
		args = []string{"-q", "-u", "nobody", file} // PgBouncer refuses to run as root, and reads its configuration before it switches users
	}
	p.cmd = exec.Command(bin, args...)
	p.cmd.Stdout, p.cmd.Stderr = &p.said, &p.said
	if err := p.cmd.Start(); err != nil {
		return nil, err
	}
	go func() { _ = p.cmd.Wait(); close(p.ended) }()
	if err := p.listens(ctx); err != nil {
		p.stop()
		return nil, fmt.Errorf("start pgbouncer: %w\n%s", err, p.said.String())
	}
	return p, nil
}

// listens waits until PgBouncer accepts connections.
func (p *pgbouncer) listens(ctx context.Context) error {
	return until(ctx, 10*time.Second, "it listens", func() (bool, error) {
		if conn, err := net.Dial("tcp", p.address); err == nil {
			return true, conn.Close()
		}
		select {
		case <-p.ended:
			return false, errors.New("it has exited")
		default:
			return false, nil
		}
	})
}

func (p *pgbouncer) stop() {
	_ = p.cmd.Process.Signal(syscall.SIGTERM)
	<-p.ended
}

// freeAddress returns an unused local address.
func freeAddress() (string, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	return l.Addr().String(), l.Close()
}
