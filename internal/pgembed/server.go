package pgembed

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/url"
	"os"
	"strconv"
	"sync"
	"time"
)

// Options configures [Start]. The zero value means a temporary server on a free port.
type Options struct {
	// DataDir is the server's home, which is kept between runs and created if it does not exist (see the package comment for its contents).
	// If this process runs as root, the server's unprivileged user must be able to access the folder, so a folder below /root does not
	// work. The default is a new folder below TempDir, which Stop removes.
	DataDir string

	// TempDir is the directory in which a temporary home is created. The default is os.TempDir.
	TempDir string

	// Port is the TCP port on 127.0.0.1. The default, 0, selects a free port, which Restart keeps.
	Port int

	// BinDir is a folder that contains initdb and postgres, version 14 or newer. By default, Start uses PGBIN from the environment; if it
	// is not set, Start searches the machine, and finally downloads PostgreSQL.
	BinDir string

	// StandbyOf is the URL of a primary. A server with a new data directory starts as a hot standby that streams from that primary, which
	// requires pg_basebackup in BinDir. By default, the server is a primary with an empty database.
	StandbyOf string

	// Seed is the home of a stopped server. A new home starts as a copy of it, which takes a tenth of the CPU time that initdb needs. The
	// copy keeps the seed's password and system identifier, so Seed is only for tests. By default, initdb creates the data directory.
	Seed string

	// Settings are PostgreSQL configuration parameters. They override the defaults set by this package.
	Settings map[string]string

	// CacheDir is the folder for downloaded binaries. The default is the user's cache directory. For root, it is /var/cache, because the
	// unprivileged user cannot access root's cache directory.
	CacheDir string

	// Repository is the base URL of the binaries. The default is the public repository of github.com/fergusstrange/embedded-postgres.
	Repository string

	// Logger logs starts, stops and repairs. By default, nothing is logged.
	Logger *slog.Logger

	// places overrides the locations that are searched for binaries. Tests use it to hide installed ones.
	places *places

	// outlives disables the signal that the kernel sends when the owner dies. Tests use it to simulate other systems.
	outlives bool
}

// Timeouts for starting and stopping a server. If a server does not stop in time, a more forceful method is used.
const (
	startWithin = 2 * time.Minute // including recovery after a crash
	fastWithin  = 15 * time.Second
	quitWithin  = 10 * time.Second
)

// Server is a running PostgreSQL server. All methods are safe for concurrent use.
type Server struct {
	home   *home
	as     account
	binDir string
	port   int
	logger *slog.Logger
	extra  map[string]string
	tied   bool // the kernel stops the server when this process dies

	mu      sync.Mutex // allows one Stop or Restart at a time; guards the fields below
	proc    *process
	stopped bool
}

// Start returns a server that accepts connections. Creating a new home takes about a second, in addition to a possible download. ctx limits
// only Start; cancelling it later does not stop the server.
//
// Start returns an error that matches [ErrInUse] if a living process is using o.DataDir. It returns an error that matches [ErrNoBinaries]
// and states a remedy if there is no PostgreSQL to run.
func Start(ctx context.Context, o Options) (_ *Server, err error) {
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	removeAbandoned(ctx, o)

	as, err := accountFor(o.DataDir)
	if err != nil {
		return nil, fmt.Errorf("start postgres: %w", err)
	}
	home, err := openHome(o, as)
	if err != nil {
		return nil, fmt.Errorf("start postgres: %w", err)
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, home.close())
		}
	}()
	if err := home.takeOver(ctx, o.Logger); err != nil {
		return nil, fmt.Errorf("start postgres: %w", err)
	}
	binDir, err := findBinaries(ctx, o, as, home.version())
	if err != nil {
		return nil, fmt.Errorf("start postgres: %w", err)
	}
	if err := home.checkAccess(ctx, binDir, as); err != nil {
		return nil, fmt.Errorf("start postgres: %w", err)
	}
	if err := home.initialise(ctx, binDir, as, o); err != nil {
		return nil, fmt.Errorf("start postgres: %w", err)
	}

	if err := home.secure(ctx, binDir, as); err != nil {
		return nil, fmt.Errorf("start postgres: %w", err)
	}

	s := &Server{home: home, as: as, binDir: binDir, port: o.Port, logger: o.Logger, extra: o.Settings, tied: !o.outlives}
	if err := s.startOnAPort(ctx); err != nil {
		return nil, fmt.Errorf("start postgres: %w", err)
	}
	s.logger.InfoContext(ctx, "postgres started", "server_pid", s.proc.pid, "port", s.port, "dir", home.dir, "bin", binDir)
	return s, nil
}

// URL returns a URL that connects to the database postgres as the superuser, over TCP on the loopback interface. Instead of the password,
// the URL contains the password file's path, which libpq and pgx read. It is therefore safe to show and log.
func (s *Server) URL() string {
	return fmt.Sprintf("postgres://postgres@127.0.0.1:%d/postgres?sslmode=disable&passfile=%s", s.port,
		url.QueryEscape(s.home.passwordFile()))
}

// Port returns the TCP port on 127.0.0.1.
func (s *Server) Port() int { return s.port }

// Dir returns the server's home, which contains the server's log, postgres.log.
func (s *Server) Dir() string { return s.home.dir }

// BinDir returns the folder that contains the binaries.
func (s *Server) BinDir() string { return s.binDir }

// PID returns the postmaster's PID, which Restart changes. After Stop, PID returns the last postmaster's PID.
func (s *Server) PID() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.proc.pid
}

// PIDs returns the PIDs of the server's processes, including the postmaster, or none after the server has exited. On systems other than
// Linux, it returns only the postmaster's PID, because other processes cannot be found by their working directory.
func (s *Server) PIDs() []int {
	if pid := s.PID(); !canListProcesses && isAlive(pid) {
		return []int{pid}
	}
	return serversIn(s.home.pgdata())
}

// Restart stops the server and starts it again on the same port. Mode "fast" terminates all sessions and writes all data to disk. Mode
// "immediate" aborts as in a power failure, and the next start recovers from the log. If the server has already died, for example because
// it was killed, Restart only starts it.
func (s *Server) Restart(ctx context.Context, mode string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stopped {
		return errors.New("restart postgres: it was stopped permanently")
	}
	var err error
	switch mode {
	case "fast":
		err = s.proc.stop(fastSignal)
	case "immediate":
		err = s.proc.stop(quitSignal)
	default:
		return fmt.Errorf("restart postgres: unknown mode %q: want fast or immediate", mode)
	}
	if err != nil {
		return fmt.Errorf("restart postgres: %w", err)
	}
	// If the postmaster was killed, some of its sessions may still be using its shared memory.
	if err := s.home.takeOver(ctx, s.logger); err != nil {
		return fmt.Errorf("restart postgres: %w", err)
	}
	if err := s.start(ctx); err != nil {
		return fmt.Errorf("restart postgres: %w", err)
	}
	s.logger.InfoContext(ctx, "postgres restarted", "server_pid", s.proc.pid, "port", s.port, "mode", mode)
	return nil
}

// Stop stops the server, by force if a fast shutdown takes too long. It removes a temporary home. Calls after the first have no effect.
func (s *Server) Stop() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stopped {
		return nil
	}
	s.stopped = true
	err := s.proc.stop(fastSignal)
	err = errors.Join(err, s.home.takeOver(context.Background(), s.logger), s.home.close())
	if err != nil {
		return fmt.Errorf("stop postgres: %w", err)
	}
	s.logger.Info("postgres stopped", "server_pid", s.proc.pid)
	return nil
}

// startOnAPort starts the server on the configured port or on a free one. If another process takes the free port first, it tries a
// different one.
func (s *Server) startOnAPort(ctx context.Context) error {
	if s.port != 0 {
		return s.start(ctx)
	}
	var err error
	for range 5 {
		if s.port, err = freePort(); err != nil {
			return err
		}
		if err = s.start(ctx); err == nil || portIsFree(s.port) || ctx.Err() != nil {
			return err
		}
	}
	return err
}

// start starts the server and waits until it accepts connections.
func (s *Server) start(ctx context.Context) error {
	ctx, cancel := context.WithTimeoutCause(ctx, startWithin, fmt.Errorf("not ready after %s", startWithin))
	defer cancel()
	log, err := s.home.openLog()
	if err != nil {
		return err
	}
	defer log.Close() // the server has its own file descriptor

	proc, err := launch(s.command(log))
	if err != nil {
		return err
	}
	if err := proc.waitReady(ctx, s.home.pgdata()); err != nil {
		return errors.Join(fmt.Errorf("%w; its log ends:\n%s", err, tail(log)), proc.stop(quitSignal))
	}
	s.proc = proc
	return nil
}

func freePort() (int, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return 0, fmt.Errorf("find a free port: %w", err)
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port, nil
}

func portIsFree(port int) bool {
	l, err := net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
	if err != nil {
		return false
	}
	return l.Close() == nil
}

// tail returns the last 4 KiB of the log, which may include the output of earlier runs.
func tail(log *os.File) string {
	const most = 4 << 10
	var size int64
	if info, err := log.Stat(); err == nil {
		size = info.Size()
	}
	text := make([]byte, min(size, most))
	n, _ := log.ReadAt(text, size-int64(len(text)))
	if n == 0 {
		return "(nothing)"
	}
	return string(text[:n])
}
