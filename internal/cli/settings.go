package cli

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"os"
	"runtime/debug"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/spf13/cobra"

	apienv "github.com/trapeze-run/trapeze/api/env"
	"github.com/trapeze-run/trapeze/internal/dburl"
	"github.com/trapeze-run/trapeze/internal/envvar"
	runnerenv "github.com/trapeze-run/trapeze/runner/env"
)

// Settings holds the settings from the environment. The variables are listed in docs/reference.md.
type Settings struct {
	runnerenv.Config
	envvar.Program
	API apienv.Config
}

// Load reads the environment. The error names every invalid variable, not just the first.
func Load() (c Settings, err error) {
	var errs [3]error
	c.Config, errs[0] = runnerenv.Load()
	c.API, errs[1] = apienv.Load()
	c.Program, errs[2] = envvar.Read[envvar.Program]()
	if err := errors.Join(errors.Join(errs[:]...), c.validate()); err != nil {
		return c, Usage("bad configuration: %w", err)
	}
	return c, nil
}

func (c Settings) validate() error {
	var wrong envvar.Checks
	wrong.OneOf("TRAPEZE_LOG", c.Log, "debug", "info", "warn", "error")
	wrong.OneOf("TRAPEZE_LOG_FORMAT", c.LogFormat, "text", "json")
	if c.LedgerURL != "" {
		ledger, err := url.Parse(c.LedgerURL)
		wrong.That(err == nil && (ledger.Scheme == "http" || ledger.Scheme == "https") && ledger.Host != "",
			"TRAPEZE_LEDGER_URL=%q: want http://host:port/path", c.LedgerURL)
	}
	for one := range strings.SplitSeq(c.Server, ",") { // a remote worker accepts several servers
		if c.Server != "" {
			err := ValidServer(strings.TrimSpace(one))
			wrong.That(err == nil, "TRAPEZE_SERVER: %w", err)
		}
	}
	return errors.Join(wrong...)
}

// ErrNoDatabase means that a command needs a database but DATABASE_URL is not set.
var ErrNoDatabase = Usage("DATABASE_URL is not set: export DATABASE_URL=postgres://user@host/database, " +
	"such as the one that trapeze serve prints when it starts its own PostgreSQL, or use a server: --server URL")

// Connect opens a pool. It returns an error if the server does not respond, is too old or, with writes set, does not accept writes.
func (c Settings) Connect(ctx context.Context, writes bool) (*pgxpool.Pool, error) {
	open := c.OpenAny
	if writes {
		open = c.Open
	}
	pool, err := open(ctx)
	switch {
	case errors.Is(err, runnerenv.ErrDatabaseURL):
		return nil, Usage("%w", err)
	case err != nil:
		return nil, Unavailable("%w", err)
	}
	return pool, nil
}

// MigrationURL returns the database's direct URL if one is set, and otherwise DATABASE_URL. Migrations must bypass a pooler.
func (c Settings) MigrationURL() string {
	if c.Options.DirectURL != "" && c.Options.DirectURL != "off" {
		return c.Options.DirectURL
	}
	return c.DatabaseURL
}

// ValidServer returns an error if text is not a valid server URL. The error does not contain a password.
func ValidServer(text string) error {
	u, err := url.Parse(text)
	if (err != nil || u.User != nil || u.Host == "") && strings.Contains(text, "@") {
		return errors.New("want http://host:port or https://host, without a user and password: set TRAPEZE_TOKEN")
	}
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" || u.RawQuery != "" {
		return fmt.Errorf("invalid server %q: want http://host:port or https://host, with the path prefix of its API", text)
	}
	return nil
}

// ReleaseAnnotation is the key of the root command's annotation that holds the program's release, if any.
const ReleaseAnnotation = "release"

// ProgramVersion returns the program's release, or else the build's module version.
func ProgramVersion(c *cobra.Command) string {
	if release := c.Root().Annotations[ReleaseAnnotation]; release != "" {
		return release
	}
	if info, ok := debug.ReadBuildInfo(); ok && info.Main.Version != "" {
		return info.Main.Version
	}
	return "(devel)"
}

// Masked describes the location of a database without revealing its password.
func Masked(databaseURL string) string {
	c, err := dburl.Config(databaseURL)
	if err != nil {
		return "unknown"
	}
	hosts := []string{hostPort(c.Host, c.Port)}
	for _, other := range c.Fallbacks { // pgx lists the same host again if TLS is optional
		if host := hostPort(other.Host, other.Port); !slices.Contains(hosts, host) {
			hosts = append(hosts, host)
		}
	}
	who := c.User
	if c.Password != "" {
		who += ":xxxxx"
	}
	if strings.HasPrefix(c.Host, "/") { // a directory of Unix sockets
		return fmt.Sprintf("postgres://%s@/%s?host=%s&port=%d", who, c.Database, c.Host, c.Port)
	}
	url := fmt.Sprintf("postgres://%s@%s/%s", who, strings.Join(hosts, ","), c.Database)
	if c.TLSConfig == nil && len(c.Fallbacks) == 0 {
		url += "?sslmode=disable"
	}
	return url
}

func hostPort(host string, port uint16) string {
	if strings.Contains(host, ":") {
		host = "[" + host + "]"
	}
	return fmt.Sprintf("%s:%d", host, port)
}

// Logger returns a logger that writes to stderr, configured by TRAPEZE_LOG and TRAPEZE_LOG_FORMAT.
func (c Settings) Logger() *slog.Logger {
	var level slog.Level
	_ = level.UnmarshalText([]byte(c.Log)) // already validated
	o := &slog.HandlerOptions{Level: level}
	if c.LogFormat == "json" {
		return slog.New(slog.NewJSONHandler(os.Stderr, o))
	}
	return slog.New(slog.NewTextHandler(os.Stderr, o))
}
