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
	"strings"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
)

// pgbouncer is a PgBouncer in transaction mode in front of the lab's server, with its default of 20 connections to each
// database.
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

// notInstalled is what a workload that needs PgBouncer says when the machine has none.
const notInstalled = "not measured: there is no pgbouncer on this machine"

// errNoPgbouncer says that the machine has no PgBouncer.
var errNoPgbouncer = errors.New("no pgbouncer on this machine")

// startPgbouncer starts one; it returns errNoPgbouncer when the machine has none.
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
	defer os.RemoveAll(dir) // it reads its file once, before it listens
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
		args = []string{"-q", "-u", "nobody", file} // it refuses to be root; it reads its file before it changes
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

// listens waits until it does.
func (p *pgbouncer) listens(ctx context.Context) error {
	return until(ctx, 10*time.Second, "it listens", func() (bool, error) {
		if conn, err := net.Dial("tcp", p.address); err == nil {
			return true, conn.Close()
		}
		select {
		case <-p.ended:
			return false, errors.New("it has ended")
		default:
			return false, nil
		}
	})
}

func (p *pgbouncer) stop() {
	_ = p.cmd.Process.Signal(syscall.SIGTERM)
	<-p.ended
}

// freeAddress is an address of this machine at which nobody listens.
func freeAddress() (string, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	return l.Addr().String(), l.Close()
}
