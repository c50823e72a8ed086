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

// Options says where and how the server runs. The zero value is a throw-away server on a free port.
type Options struct {
	// DataDir is the server's home, kept between runs and created when it does not exist; see the package comment
	// for what is put there. When we run as root, the unprivileged user that the server runs as must be able to
	// reach it: a folder below /root will not do. Default: a new folder below TempDir, removed by Stop.
	DataDir string

	// TempDir is where a throw-away home is made. Default: os.TempDir.
	TempDir string

	// Port is the TCP port on 127.0.0.1. Default 0: a free one, which stays the same through Restart.
	Port int

	// BinDir holds initdb and postgres, version 14 or newer. Default: search, see the error of a Start that finds
	// none.
	BinDir string

	// StandbyOf is the URL of a primary. A server with a new data directory begins as a hot standby that streams from it;
	// this needs pg_basebackup beside the other programs. Default: a primary with an empty database.
	StandbyOf string

	// Settings are configuration parameters of PostgreSQL, on top of and stronger than our own.
	Settings map[string]string

	// CacheDir is where downloaded binaries are kept. Default: the user's cache directory, or /var/cache for root,
	// whose own one is closed to the unprivileged user.
	CacheDir string

	// Repository is the base URL the binaries are downloaded from. Default: the public one of
	// github.com/fergusstrange/embedded-postgres.
	Repository string

	// Logger hears about start, stop and what was mended on the way. Default: nobody does.
	Logger *slog.Logger

	// places is where binaries are looked for; tests hide the machine's own with it.
	places *places

	// outlives leaves out the kernel's help when the owner dies; tests play other systems with it.
	outlives bool
}

// How long the steps of a server's life may take before we go on to the next, rougher one.
const (
	startWithin = 2 * time.Minute // recovery after a crash included
	fastWithin  = 15 * time.Second
	quitWithin  = 10 * time.Second
)

// Server is a running PostgreSQL. All methods are safe for concurrent use.
type Server struct {
	home   *home
	as     account
	binDir string
	port   int
	logger *slog.Logger
	extra  map[string]string
	tied   bool // the kernel ends the server with us

	mu      sync.Mutex // one Stop or Restart at a time; guards what follows
	proc    *process
	stopped bool
}

// Start returns a server that accepts connections. It blocks for about a second when the home is new. ctx bounds
// Start alone: ending it later does not stop the server.
//
// It returns an error that matches [ErrInUse] when a living process uses o.DataDir, and one that matches
// [ErrNoBinaries] and says what to do when there is no PostgreSQL to run.
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
	if err := home.reachable(ctx, binDir, as); err != nil {
		return nil, fmt.Errorf("start postgres: %w", err)
	}
	if err := home.initialise(ctx, binDir, as, o.StandbyOf); err != nil {
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

// URL is the address of the database "postgres" for its superuser, over TCP on the loopback interface. It names the
// file with the password, which libpq and pgx read, and can be shown and logged.
func (s *Server) URL() string {
	return fmt.Sprintf("postgres://postgres@127.0.0.1:%d/postgres?sslmode=disable&passfile=%s", s.port,
		url.QueryEscape(s.home.passwordFile()))
}

// Port is the TCP port on 127.0.0.1.
func (s *Server) Port() int { return s.port }

// Dir is the server's home; its log is the file postgres.log there.
func (s *Server) Dir() string { return s.home.dir }

// BinDir is where the binaries came from.
func (s *Server) BinDir() string { return s.binDir }

// PID is the process id of the server's first process, the postmaster. It changes with Restart, and is that of the
// last one after Stop.
func (s *Server) PID() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.proc.pid
}

// PIDs returns the ids of the server's processes, the postmaster included, or none after its end. Only on Linux can
// processes be found by their folder: elsewhere it is the postmaster's alone.
func (s *Server) PIDs() []int {
	if pid := s.PID(); !canListProcesses && isAlive(pid) {
		return []int{pid}
	}
	return serversIn(s.home.pgdata())
}

// Restart stops the server and starts it on the same port. Mode "fast" ends all sessions and writes everything out;
// mode "immediate" breaks off as a power failure would, and the start recovers from the log. A server that has
// already died, by a kill for example, is only started.
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
	// A postmaster that was killed may have left sessions behind that hold its shared memory.
	if err := s.home.takeOver(ctx, s.logger); err != nil {
		return fmt.Errorf("restart postgres: %w", err)
	}
	if err := s.start(ctx); err != nil {
		return fmt.Errorf("restart postgres: %w", err)
	}
	s.logger.InfoContext(ctx, "postgres restarted", "server_pid", s.proc.pid, "port", s.port, "mode", mode)
	return nil
}

// Stop ends the server, fast at first and by force when that takes too long, and removes a throw-away home. It may
// be called any number of times; only the first does something.
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

// startOnAPort starts the server on the wanted port, or on a free one. Between our finding a free port and the
// server's taking it somebody else may; then there is another.
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

// start launches the server and waits until it accepts connections.
func (s *Server) start(ctx context.Context) error {
	ctx, cancel := context.WithTimeoutCause(ctx, startWithin, fmt.Errorf("not ready after %s", startWithin))
	defer cancel()
	log, err := s.home.openLog()
	if err != nil {
		return err
	}
	defer log.Close() // the server has its own copy

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

// tail returns the end of what was written to the log since it was opened.
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
