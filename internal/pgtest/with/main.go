// Command with starts a PostgreSQL server, runs a command whose tests share the server, and then stops the server:
//
//	go run ./internal/pgtest/with go test ./...
//
// If the user in DATABASE_URL is a superuser, the tests use that server instead.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"syscall"

	"github.com/trapeze-run/trapeze/internal/pgtest"
)

func main() {
	code, err := run(os.Args[1:])
	if err != nil {
		fmt.Fprintln(os.Stderr, "with:", err)
		code = max(code, 1)
	}
	os.Exit(code)
}

func run(command []string) (code int, err error) {
	if len(command) == 0 {
		return 2, errors.New("a command is missing")
	}
	c := exec.Command(command[0], command[1:]...)
	if c.Err != nil {
		return 1, c.Err
	}
	// The server must outlive the command, so signals are passed on to the command instead of ending this process. A terminal sends its
	// signals to both.
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	if !signal.Ignored(syscall.SIGHUP) { // SIGHUP is ignored under nohup
		signal.Notify(signals, syscall.SIGHUP)
	}
	env := os.Environ()
	given, failed := pgtest.GivenServer(context.Background())
	if failed != nil {
		return 1, failed
	}
	if given == "" {
		if os.Getenv("DATABASE_URL") != "" {
			fmt.Fprintln(os.Stderr, "The tests start a server, because the user in DATABASE_URL is not a superuser.")
		}
		server, failed := pgtest.StartServer(context.Background())
		if failed != nil {
			return 1, failed
		}
		defer func() { err = errors.Join(err, server.Stop()) }()
		seed, failed := pgtest.MakeSeed(context.Background(), server)
		if failed != nil {
			return 1, failed
		}
		env = append(env, pgtest.ServerVar+"="+server.URL(), pgtest.SeedVar+"="+seed)
	}
	c.Env, c.Stdin, c.Stdout, c.Stderr = env, os.Stdin, os.Stdout, os.Stderr
	if err := c.Start(); err != nil {
		return 1, err
	}
	ended := make(chan error, 1)
	go func() { ended <- c.Wait() }()
	for {
		select {
		case s := <-signals:
			_ = c.Process.Signal(s)
		case err := <-ended:
			if _, ok := errors.AsType[*exec.ExitError](err); err != nil && !ok {
				return 1, err
			}
			if code = c.ProcessState.ExitCode(); code < 0 {
				code = 1 // terminated by a signal
			}
			return code, nil
		}
	}
}
