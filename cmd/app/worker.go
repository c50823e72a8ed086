package app

import (
	"github.com/trapeze-run/trapeze/internal/cli"

	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"syscall"

	"connectrpc.com/connect"
	"github.com/spf13/cobra"

	"github.com/trapeze-run/trapeze/remote/worker"
	"github.com/trapeze-run/trapeze/runner"
)

func newWorkerCommand(register Register, configure func(*runner.Options)) *cobra.Command {
	var ca, cert, key string
	c := &cobra.Command{
		Use:   "worker",
		Short: "Run jobs without a database, as a remote worker of the pods at --server",
		Long: `Run jobs without a database: pods send jobs to the worker and store their outcomes.

When the worker loses its pod, it keeps its running jobs and reopens its stream on any pod in --server that responds. Separate
several addresses with commas. SIGTERM drains the worker.

The log shows when a pod accepts the worker, or why none does; TRAPEZE_LOG=debug shows each job. TRAPEZE_SLOTS is the maximum number
of running jobs, TRAPEZE_KINDS the kinds to run, TRAPEZE_POD_NAME the name, TRAPEZE_SHUTDOWN_GRACE the time handlers get after SIGTERM.
The worker retries pods that it cannot reach. If a pod rejects the worker, the worker exits with code 1.`,
		Example: `  trapeze worker --server http://127.0.0.1:8080
  TRAPEZE_TOKEN=… trapeze worker --server https://a.example.org,https://b.example.org
  trapeze worker --server https://jobs.example.org --ca ca.pem --cert gpu.pem --key gpu.key`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			config, err := cli.Load()
			if err != nil {
				return err
			}
			to, _ := c.Flags().GetString("server")
			if to == "" {
				to = config.Server
			}
			token, _ := c.Flags().GetString("token")
			if token == "" {
				token = config.Token
			}
			if to == "" {
				return cli.Usage("a remote worker needs --server (TRAPEZE_SERVER): the address of a pod")
			}
			secure, err := clientTLS(ca, cert, key)
			if err != nil {
				return cli.Usage("%w", err)
			}
			log := config.Logger()
			slog.SetDefault(log)
			o := config.Options
			if configure != nil {
				configure(&o)
			}
			r, err := runner.NewRemote(runner.RemoteOptions{Name: config.Options.PodName, Logger: log, Middleware: o.Middleware})
			if err != nil {
				return err
			}
			defer r.Close()
			if register != nil {
				if err := register(c.Context(), r, nil); err != nil {
					return err
				}
			}
			w, err := worker.New(r, worker.Options{Server: to, Token: token, TLS: secure, Name: config.Options.PodName, Version: cli.ProgramVersion(c), Slots: config.Options.Slots,
				Kinds: config.Options.Kinds, ShutdownGrace: config.Options.ShutdownGrace, Logger: log})
			if err != nil {
				return cli.Usage("%w", err)
			}
			ctx, stop := signal.NotifyContext(c.Context(), syscall.SIGTERM, os.Interrupt)
			defer stop()
			if err := json.NewEncoder(c.OutOrStdout()).Encode(map[string]any{"started": true, "worker": r.PodName(), "server": to}); err != nil {
				return err
			}
			return workerEnded(w.Run(ctx))
		},
	}
	c.Flags().StringVar(&ca, "ca", "", "PEM file of certificate authorities for the server (default: the system's)")
	c.Flags().StringVar(&cert, "cert", "", "PEM file of the client certificate")
	c.Flags().StringVar(&key, "key", "", "PEM file of the client certificate's key")
	return c
}

// workerEnded adds an exit code to a worker's error.
func workerEnded(err error) error {
	if errors.Is(err, worker.ErrDistrusted) {
		return cli.Refused("%w", err)
	}
	switch connect.CodeOf(err) {
	case connect.CodeUnauthenticated, connect.CodePermissionDenied, connect.CodeInvalidArgument, connect.CodeUnimplemented:
		if err != nil {
			return cli.Refused("%w", err)
		}
	}
	return err
}

// clientTLS returns a TLS configuration with the worker's certificate and its trusted CAs. It returns nil if the system defaults apply.
func clientTLS(ca, cert, key string) (*tls.Config, error) {
	if ca == "" && cert == "" && key == "" {
		return nil, nil
	}
	config := &tls.Config{MinVersion: tls.VersionTLS12}
	if ca != "" {
		raw, err := os.ReadFile(ca)
		if err != nil {
			return nil, fmt.Errorf("--ca: %w", err)
		}
		if config.RootCAs = x509.NewCertPool(); !config.RootCAs.AppendCertsFromPEM(raw) {
			return nil, fmt.Errorf("--ca: %s has no PEM certificate", ca)
		}
	}
	if (cert == "") != (key == "") {
		return nil, errors.New("want --cert and --key together: a certificate and its key")
	}
	if cert != "" {
		read := func() (*tls.Certificate, error) {
			pair, err := tls.LoadX509KeyPair(cert, key)
			return &pair, err
		}
		if _, err := read(); err != nil {
			return nil, fmt.Errorf("--cert, --key: %w", err)
		}
		// The certificate is read at each handshake, so that a renewed one needs no restart.
		config.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return read() }
	}
	return config, nil
}
