package cli

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/spf13/cobra"

	"github.com/trapeze-run/trapeze/api"
	"github.com/trapeze-run/trapeze/internal/dburl"
	"github.com/trapeze-run/trapeze/internal/migrate"
	"github.com/trapeze-run/trapeze/internal/pgembed"
	"github.com/trapeze-run/trapeze/internal/schema"
	"github.com/trapeze-run/trapeze/internal/store"
	"github.com/trapeze-run/trapeze/internal/telemetry"
	"github.com/trapeze-run/trapeze/job"
	remote "github.com/trapeze-run/trapeze/remote/server"
	"github.com/trapeze-run/trapeze/runner"
)

// RegisterHandlers registers a program's handlers before its pod or worker runs. For a worker, which has no database, pool is nil.
type RegisterHandlers = func(ctx context.Context, r *runner.Runner, pool *pgxpool.Pool) error

// ConfigureRunner changes a program's runner options after they have been set from the environment. It may be nil.
type ConfigureRunner = func(*runner.Options)

// ServeCommand returns the serve command for a program with the given handlers and options.
func ServeCommand(register RegisterHandlers, configure ConfigureRunner) *cobra.Command {
	s := serving{register: register, configure: configure}
	c := &cobra.Command{
		Use:   "serve",
		Short: "Run a pod: HTTP API and runner",
		Long: `Run a pod: it submits, runs, hands over and recovers jobs, and serves the HTTP API.

Without DATABASE_URL it starts its own PostgreSQL and keeps the data between runs. It migrates the schema first; many pods may
start at once. The first line on stdout is JSON and appears when the pod is ready; the log goes to stderr. SIGTERM drains the
pod: running handlers get TRAPEZE_SHUTDOWN_GRACE to end, then the remaining jobs go to other pods. A second SIGTERM cuts this time
short: handlers are cancelled and have one second left.`,
		Example: `  trapeze serve
  DATABASE_URL=postgres://app@db/app TRAPEZE_HTTP_ADDR=127.0.0.1:0 trapeze serve
  curl -sS 127.0.0.1:8080/jobs -H 'Content-Type: application/json' -d '{"kind":"my_kind","args":{"year":2025}}'`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if c.Flags().Changed("server") {
				return Usage("serve runs a pod on the database, not through a server: set DATABASE_URL, and omit --server; trapeze worker runs jobs through a server")
			}
			config, err := Load()
			if err != nil {
				return err
			}
			// Kubernetes sets this variable in every pod. A pod with a separate, empty database would report ready and lose its jobs.
			if config.DatabaseURL == "" && os.Getenv("KUBERNETES_SERVICE_HOST") != "" && !c.Flags().Changed("data-dir") {
				return Usage("DATABASE_URL is not set: set it, or name the data of a private PostgreSQL with --data-dir")
			}
			config.Options.Version = ProgramVersion(c)
			s.config, s.log = config, config.Logger()
			slog.SetDefault(s.log)
			s.announce = func(line ReadyLine) error {
				lines := json.NewEncoder(c.OutOrStdout())
				lines.SetEscapeHTML(false) // so that the database URL can be copied from the output
				return lines.Encode(line)
			}
			return s.serve(c.Context())
		},
	}
	c.Flags().BoolVar(&s.noMigrate, "no-migrate", false, "do not migrate the schema")
	c.Flags().StringVar(&s.dataDir, "data-dir", DataDir(), "data directory of the PostgreSQL that it starts without DATABASE_URL")
	return c
}

// serving holds the state of a pod while it runs.
type serving struct {
	config    Settings
	log       *slog.Logger
	noMigrate bool
	dataDir   string
	register  RegisterHandlers // may be nil
	configure ConfigureRunner
	shown     string                // the database URL shown in the ready line
	announce  func(ReadyLine) error // prints the ready line
}

// ReadyLine is the first line that serve prints to stdout.
type ReadyLine struct {
	Ready    bool   `json:"ready"`
	Pod      string `json:"pod"`
	PodID    string `json:"pod_id"`
	HTTP     string `json:"http"`
	Database string `json:"database"` // without the password; names the password file of an embedded server; empty for [Run]
}

// serve runs the pod until the process receives a signal.
func (s *serving) serve(ctx context.Context) (err error) {
	signals := make(chan os.Signal, 4)
	signal.Notify(signals, syscall.SIGTERM, os.Interrupt)
	defer signal.Stop(signals)
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	again := make(chan struct{}) // closed by the second signal
	watching := make(chan struct{})
	defer close(watching)
	go func() {
		for count := 0; ; {
			select {
			case <-signals:
				stop()
				if count++; count == 2 {
					close(again)
				}
			case <-watching:
				return
			}
		}
	}()
	defer func() {
		if err != nil && ctx.Err() != nil { // the error is only a consequence of a signal during startup
			s.log.Info("ended before it was ready", telemetry.Err, err)
			err = nil
		}
	}()

	s.shown = Masked(s.config.DatabaseURL)
	if s.config.DatabaseURL == "" {
		server, err := pgembed.Start(ctx, pgembed.Options{DataDir: s.dataDir, Logger: s.log})
		if err != nil {
			return fmt.Errorf("start PostgreSQL, since DATABASE_URL is not set: %w", err)
		}
		go server.KeepRunning(context.WithoutCancel(ctx)) // also during the drain; Stop ends it
		s.log.Warn("DATABASE_URL is not set: this pod uses a private PostgreSQL that other pods do not share", "dir", server.Dir())
		defer func() {
			if err := server.Stop(); err != nil {
				s.log.Error("embedded PostgreSQL did not stop", telemetry.Err, err)
			}
		}()
		s.config.DatabaseURL, s.shown = server.URL(), server.URL()
	}
	pool, err := s.connect(ctx)
	if err != nil {
		return err
	}
	defer closeWithin(2*time.Second, pool.Close)
	if !s.noMigrate {
		if err := migrate.Up(ctx, s.config.MigrationURL(), s.config.Options.Schema); err != nil {
			return err
		}
	}
	if err := schema.Check(ctx, pool, s.config.Options.Schema); err != nil {
		return err
	}
	o := s.config.Options
	o.Logger = s.log
	if s.configure != nil {
		s.configure(&o)
	}
	r, err := runner.New(pool, o)
	if err != nil {
		return Usage("%w", err)
	}
	defer closeWithin(2*time.Second, r.Close)
	if s.register != nil {
		if err := s.register(ctx, r, pool); err != nil {
			return err
		}
	}
	return s.run(ctx, r, again)
}

// Serve serves a runner with its handlers until ctx is done. It calls announce when the pod is ready.
func Serve(ctx context.Context, r *runner.Runner, config Settings, log *slog.Logger, announce func(ReadyLine) error) error {
	return (&serving{config: config, log: log, announce: announce}).run(ctx, r, nil)
}

// run serves HTTP and runs jobs until ctx is done, and then drains. It keeps serving HTTP during the drain, so that clients can see why the
// pod is not ready.
func (s *serving) run(ctx context.Context, r *runner.Runner, again <-chan struct{}) error {
	listener, err := net.Listen("tcp", s.config.API.Addr)
	if err != nil {
		return Usage("TRAPEZE_HTTP_ADDR: %w: use another address, or port 0 for a free port", err)
	}
	web, err := s.web(r)
	if err != nil {
		return errors.Join(err, listener.Close())
	}
	served := make(chan error, 1)
	url := "http://" + listener.Addr().String()
	if web.TLSConfig != nil {
		url = "https://" + listener.Addr().String()
		listener = tls.NewListener(listener, web.TLSConfig)
	}
	go func() { served <- web.Serve(listener) }()

	ctx, stop := context.WithCancel(ctx)
	defer stop()
	ran := make(chan error, 1)
	go func() { ran <- r.Run(ctx) }()
	ready := time.NewTicker(5 * time.Millisecond)
	defer ready.Stop()
	for {
		select {
		case <-ready.C:
			if ok, reasons := r.Ready(); !ok && !slices.Contains(reasons, runner.ReasonDrained) {
				continue // a pod that an operator has drained also counts as started
			}
			ready.Stop()
			line := ReadyLine{
				Ready: true, Pod: r.PodName(), PodID: r.PodID(),
				HTTP: url, Database: s.shown,
			}
			if err := s.announce(line); err != nil {
				s.log.Warn("stdout is closed: the ready line was not written", telemetry.Err, err)
			}
		case <-again:
			again = nil
			r.StopNow()
		case err := <-served: // the HTTP server stops first only after an error
			s.log.Error("http server ended", telemetry.Err, err)
			stop()
			return errors.Join(Unavailable("http server: %w", err), <-ran)
		case err := <-ran:
			closing, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*time.Second)
			defer cancel()
			if web.Shutdown(closing) != nil {
				_ = web.Close()
			}
			<-served
			if errors.Is(err, job.ErrUnknownKind) {
				return Usage("TRAPEZE_KINDS: %w", err)
			}
			return err
		}
	}
}

// web returns the HTTP server. Its timeouts keep slow or idle clients from exhausting it.
func (s *serving) web(r *runner.Runner) (*http.Server, error) {
	options, err := s.config.API.Options()
	if err != nil {
		return nil, Usage("%w", err)
	}
	options.HSTS = true
	secure, err := s.config.API.TLS()
	if err != nil {
		return nil, Usage("%w", err)
	}
	for _, warning := range s.config.API.Warnings() {
		s.log.Warn(warning, "auth", s.config.API.Auth, "addr", s.config.API.Addr)
	}
	// Remote workers need HTTP/2. The server offers it over TLS. Unencrypted HTTP/2 is offered only on loopback, where other machines
	// cannot eavesdrop.
	protocols := new(http.Protocols)
	protocols.SetHTTP1(true)
	protocols.SetHTTP2(true)
	protocols.SetUnencryptedHTTP2(s.config.API.OnLoopback())
	return &http.Server{
		Handler:           ServeHandler(r, options),
		Protocols:         protocols,
		ReadHeaderTimeout: 5 * time.Second,
		ReadTimeout:       30 * time.Second,
		WriteTimeout:      60 * time.Second,
		IdleTimeout:       2 * time.Minute,
		MaxHeaderBytes:    64 << 10,
		ConnContext:       api.ConnContext,
		ErrorLog:          slog.NewLogLogger(s.log.Handler(), slog.LevelDebug),
		TLSConfig:         secure,
	}, nil
}

// ServeHandler returns the handler for the HTTP API and the service for remote workers.
func ServeHandler(r *runner.Runner, options api.Options) http.Handler {
	who := api.Workers(r, options)
	path, workers := remote.Handler(r, remote.Options{Authenticate: func(request *http.Request) (remote.Caller, error) {
		w, err := who(request)
		return remote.Caller{Name: w.Name, Kind: w.Kind, Lane: w.Lane, Refused: w.Refused}, err
	}})
	others := api.Handler(r, options)
	return http.HandlerFunc(func(w http.ResponseWriter, request *http.Request) {
		if strings.HasPrefix(request.URL.Path, path) {
			workers.ServeHTTP(w, request)
			return
		}
		others.ServeHTTP(w, request)
	})
}

// closeWithin closes a pool but waits only for a limited time, because a handler that ignores its cancelled context may still hold a
// connection.
func closeWithin(limit time.Duration, close func()) {
	closed := make(chan struct{}, 1)
	go func() {
		defer func() { closed <- struct{}{} }()
		close()
	}()
	select {
	case <-closed:
	case <-time.After(limit):
	}
}

// DataDir returns the embedded server's data directory. If the process runs as root, it is a directory that the server's user can access.
func DataDir() string {
	home, err := os.UserHomeDir()
	switch {
	case os.Geteuid() == 0 || err != nil:
		return "/var/lib/trapeze"
	case os.Getenv("XDG_DATA_HOME") != "":
		return filepath.Join(os.Getenv("XDG_DATA_HOME"), "trapeze")
	case runtime.GOOS == "darwin":
		return filepath.Join(home, "Library", "Application Support", "trapeze")
	}
	return filepath.Join(home, ".local", "share", "trapeze")
}

const (
	primaryEvery = time.Second // interval between attempts to connect to a primary
	primaryLog   = time.Minute // interval between log lines about failed attempts
)

// connect connects to the primary. If only read-only servers respond, as during a failover, it waits for a primary. Until then, it answers
// /healthz with 200 and all other requests with 503.
func (s *serving) connect(ctx context.Context) (*pgxpool.Pool, error) {
	pool, err := s.config.Connect(ctx, true)
	if !errors.Is(err, dburl.ErrReadOnly) {
		return pool, err
	}
	stop, err2 := s.answerNotStarted()
	if err2 != nil {
		return nil, err2
	}
	defer stop()
	var logged time.Time
	for errors.Is(err, dburl.ErrReadOnly) || store.Transient(err) {
		if time.Since(logged) >= primaryLog {
			logged = time.Now()
			s.log.WarnContext(ctx, "not started yet: waiting for a database that accepts writes", telemetry.Err, err)
		}
		select {
		case <-ctx.Done():
			return nil, errors.Join(context.Cause(ctx), err)
		case <-time.After(primaryEvery):
		}
		pool, err = s.config.Connect(ctx, true)
	}
	return pool, err
}

// answerNotStarted serves HTTP until stop is called, so that health checks see a process that is alive but not ready.
func (s *serving) answerNotStarted() (stop func(), err error) {
	listener, err := net.Listen("tcp", s.config.API.Addr)
	if err != nil {
		return nil, Usage("TRAPEZE_HTTP_ADDR: %w: use another address, or port 0 for a free port", err)
	}
	secure, err := s.config.API.TLS()
	if err != nil {
		return nil, errors.Join(Usage("%w", err), listener.Close())
	}
	server := &http.Server{ReadHeaderTimeout: 5 * time.Second, TLSConfig: secure,
		Handler: http.HandlerFunc(func(w http.ResponseWriter, request *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			if request.URL.Path == "/healthz" {
				_, _ = w.Write([]byte(`{"status":"ok"}` + "\n"))
				return
			}
			w.WriteHeader(http.StatusServiceUnavailable)
			_, _ = w.Write([]byte(`{"ready":false,"reasons":["not started: the database accepts no writes"]}` + "\n"))
		})}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		if secure != nil {
			_ = server.ServeTLS(listener, "", "")
			return
		}
		_ = server.Serve(listener)
	}()
	return func() { _ = server.Close(); <-ended }, nil
}
