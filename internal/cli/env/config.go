// Package env reads and checks the environment variables of the program. From them it makes the connection to the database, the log, the
// options of the runner and the TLS settings of the HTTP server.
package env

import (
	"github.com/trapeze-run/trapeze/internal/cli/exit"

	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"reflect"
	"regexp"
	"runtime"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/kelseyhightower/envconfig"

	"github.com/trapeze-run/trapeze/internal/dburl"
	"github.com/trapeze-run/trapeze/internal/failpoint"
	"github.com/trapeze-run/trapeze/runner"
)

// Settings is the environment: docs of the variables are in the reference. A zero retention keeps for ever, and a zero age or
// approval time is no limit.
type Settings struct {
	databaseVars
	podVars
	jobVars
	retentionVars
	webVars
	logVars
	remoteVars
}

type databaseVars struct {
	DatabaseURL string `envconfig:"DATABASE_URL"`
	DirectURL   string `envconfig:"TRAPEZE_DATABASE_DIRECT_URL"`
	Schema      string `envconfig:"TRAPEZE_SCHEMA"`
}

type podVars struct {
	Pod           string        `envconfig:"TRAPEZE_POD"`
	Runner        bool          `envconfig:"TRAPEZE_RUNNER"`
	Slots         int           `envconfig:"TRAPEZE_SLOTS"`
	Kinds         []string      `envconfig:"TRAPEZE_KINDS"`
	Lanes         LaneList      `envconfig:"TRAPEZE_LANES"`
	PollInterval  time.Duration `envconfig:"TRAPEZE_POLL_INTERVAL"`
	Lease         time.Duration `envconfig:"TRAPEZE_LEASE"`
	Heartbeat     time.Duration `envconfig:"TRAPEZE_HEARTBEAT"`
	ShutdownGrace time.Duration `envconfig:"TRAPEZE_SHUTDOWN_GRACE"`
	MinSchedule   time.Duration `envconfig:"TRAPEZE_MIN_SCHEDULE_INTERVAL"`
	DemoHandlers  bool          `envconfig:"TRAPEZE_DEMO_HANDLERS"`
	LedgerURL     string        `envconfig:"TRAPEZE_LEDGER_URL"`
}

type jobVars struct {
	MaxAttempts int           `envconfig:"TRAPEZE_MAX_ATTEMPTS"`
	MaxCrashes  int           `envconfig:"TRAPEZE_MAX_CRASHES"`
	Timeout     time.Duration `envconfig:"TRAPEZE_TIMEOUT"`
	StaleAfter  time.Duration `envconfig:"TRAPEZE_STALE_AFTER"`
	MaxAge      time.Duration `envconfig:"TRAPEZE_MAX_AGE"`
	ApprovalTTL time.Duration `envconfig:"TRAPEZE_APPROVAL_TTL"`
}

type retentionVars struct {
	KeepSucceeded time.Duration `envconfig:"TRAPEZE_RETENTION_SUCCEEDED"`
	KeepFailed    time.Duration `envconfig:"TRAPEZE_RETENTION_FAILED"`
	KeepCancelled time.Duration `envconfig:"TRAPEZE_RETENTION_CANCELLED"`
	KeepEvents    time.Duration `envconfig:"TRAPEZE_RETENTION_EVENTS"`
}

type webVars struct {
	HTTPAddr       string   `envconfig:"TRAPEZE_HTTP_ADDR"`
	Auth           string   `envconfig:"TRAPEZE_AUTH"`
	TokensFile     string   `envconfig:"TRAPEZE_TOKENS_FILE"`
	JWTKeysFile    string   `envconfig:"TRAPEZE_JWT_KEYS_FILE"`
	TrustedProxies []string `envconfig:"TRAPEZE_TRUSTED_PROXIES"`
	Hosts          []string `envconfig:"TRAPEZE_HOSTS"`
	TLSCert        string   `envconfig:"TRAPEZE_TLS_CERT"`
	TLSKey         string   `envconfig:"TRAPEZE_TLS_KEY"`
	TLSClientCA    string   `envconfig:"TRAPEZE_TLS_CLIENT_CA"`
}

type logVars struct {
	Log       string `envconfig:"TRAPEZE_LOG"`
	LogFormat string `envconfig:"TRAPEZE_LOG_FORMAT"`
}

// remoteVars are the server that commands act through, and remote workers run jobs of.
type remoteVars struct {
	Server string `envconfig:"TRAPEZE_SERVER"`
	Token  string `envconfig:"TRAPEZE_TOKEN"`
}

func defaults() Settings {
	return Settings{
		databaseVars: databaseVars{Schema: "trapeze"},
		podVars: podVars{
			Runner: true, Slots: 4 * runtime.NumCPU(), PollInterval: 10 * time.Second, Lease: 8 * time.Second, Heartbeat: 2 * time.Second,
			ShutdownGrace: 20 * time.Second, MinSchedule: time.Second,
		},
		jobVars:       jobVars{MaxAttempts: 5, MaxCrashes: 3},
		retentionVars: retentionVars{KeepSucceeded: 48 * time.Hour, KeepFailed: 168 * time.Hour, KeepCancelled: 48 * time.Hour, KeepEvents: 168 * time.Hour},
		webVars:       webVars{HTTPAddr: "127.0.0.1:8080", Auth: "token"},
		logVars:       logVars{Log: "info", LogFormat: "text"},
	}
}

// fields are those of the environment, without the structs that hold them.
func fields() []reflect.StructField {
	return slices.DeleteFunc(reflect.VisibleFields(reflect.TypeFor[Settings]()), func(f reflect.StructField) bool { return f.Anonymous })
}

// Load reads the environment. Its error names every variable that is wrong, not only the first.
func Load() (Settings, error) {
	c := defaults()
	errs := append(c.process(), unknownVariables(os.Environ())...)
	if os.Getenv("TRAPEZE_HEARTBEAT") == "" { // a short lease alone is no contradiction
		c.Heartbeat = min(c.Heartbeat, c.Lease/3)
	}
	c.openOnLoopback()
	errs = append(errs, c.validate()...)
	if len(errs) > 0 {
		return c, exit.Usage("bad configuration: %w", errors.Join(errs...))
	}
	return c, nil
}

// process reads one field at a time, because envconfig ends at the first error.
func (c *Settings) process() (errs []error) {
	all := reflect.ValueOf(c).Elem()
	for _, field := range fields() {
		value := all.FieldByIndex(field.Index)
		field.Offset, field.Index = 0, []int{0}
		one := reflect.New(reflect.StructOf([]reflect.StructField{field}))
		one.Elem().Field(0).Set(value)
		if err := envconfig.Process("", one.Interface()); err != nil {
			name := field.Tag.Get("envconfig")
			errs = append(errs, fmt.Errorf("%s=%q: want %s", name, os.Getenv(name), wanted(field.Type)))
			continue
		}
		value.Set(one.Elem().Field(0))
	}
	return errs
}

func wanted(t reflect.Type) string {
	switch {
	case t == reflect.TypeFor[LaneList]():
		return "lanes such as interactive=2:csv_ingest+unit_sync,maintenance=1:factor_sync: name=slots:kinds"
	case t == reflect.TypeFor[time.Duration]():
		return "a length of time such as 1500ms, 10s or 48h"
	case t.Kind() == reflect.Bool:
		return "true or false"
	case t.Kind() == reflect.Int:
		return "a whole number"
	}
	return "a value of another form"
}

// Variable is a variable of the environment.
type Variable struct {
	Name    string
	Default any
}

// Variables lists those that the program knows.
func Variables() (list []Variable) {
	usual := reflect.ValueOf(defaults())
	for _, field := range fields() {
		list = append(list, Variable{field.Tag.Get("envconfig"), usual.FieldByIndex(field.Index).Interface()})
	}
	return list
}

// unknownVariables finds variables of ours that mean nothing here: a misspelt one would otherwise be a silent default.
func unknownVariables(environment []string) (errs []error) {
	known := map[string]bool{}
	for _, one := range Variables() {
		known[one.Name] = true
	}
	slices.Sort(environment)
	for _, assignment := range environment {
		name, value, _ := strings.Cut(assignment, "=")
		switch {
		case !strings.HasPrefix(name, "TRAPEZE_"), known[name]:
		case name == "TRAPEZE_FAILPOINTS" && (failpoint.Enabled || value == ""):
		case name == "TRAPEZE_FAILPOINTS":
			errs = append(errs, errors.New("TRAPEZE_FAILPOINTS: this binary is built without the tag failpoints"))
		default:
			errs = append(errs, fmt.Errorf("%s: there is no such variable", name))
		}
	}
	return errs
}

var validSchema = regexp.MustCompile(`^[a-z_][a-z0-9_]{0,47}$`)

func (c *Settings) validate() (errs []error) {
	complain := func(ok bool, format string, args ...any) {
		if !ok {
			errs = append(errs, fmt.Errorf(format, args...))
		}
	}
	oneOf := func(name, value string, values ...string) {
		complain(slices.Contains(values, value), "%s=%q: want one of %s", name, value, strings.Join(values, ", "))
	}
	leastPoll := time.Second
	if c.DemoHandlers {
		leastPoll = 100 * time.Millisecond
	}
	complain(validSchema.MatchString(c.Schema), "TRAPEZE_SCHEMA=%q: want %s", c.Schema, validSchema)
	complain(c.Slots >= 1, "TRAPEZE_SLOTS=%d: want at least 1", c.Slots)
	complain(c.PollInterval >= leastPoll, "TRAPEZE_POLL_INTERVAL=%s: want at least %s", c.PollInterval, leastPoll)
	complain(c.Heartbeat > 0, "TRAPEZE_HEARTBEAT=%s: want more than 0", c.Heartbeat)
	complain(c.Lease > 0 && c.Heartbeat <= c.Lease/3, "TRAPEZE_LEASE=%s: want at least three times TRAPEZE_HEARTBEAT, which is %s", c.Lease, c.Heartbeat)
	complain(c.ShutdownGrace >= 0, "TRAPEZE_SHUTDOWN_GRACE=%s: want 0 or more", c.ShutdownGrace)
	complain(c.MaxAttempts >= 1, "TRAPEZE_MAX_ATTEMPTS=%d: want at least 1", c.MaxAttempts)
	complain(c.MaxCrashes >= 1, "TRAPEZE_MAX_CRASHES=%d: want at least 1", c.MaxCrashes)
	complain(c.Timeout >= 0, "TRAPEZE_TIMEOUT=%s: want 0 (off) or more", c.Timeout)
	complain(c.StaleAfter >= 0, "TRAPEZE_STALE_AFTER=%s: want 0 (off) or more", c.StaleAfter)
	complain(c.MinSchedule > 0, "TRAPEZE_MIN_SCHEDULE_INTERVAL=%s: want more than 0", c.MinSchedule)
	complain(c.MaxAge >= 0, "TRAPEZE_MAX_AGE=%s: want 0 (off) or more", c.MaxAge)
	complain(c.ApprovalTTL >= 0, "TRAPEZE_APPROVAL_TTL=%s: want 0 (off) or more", c.ApprovalTTL)
	for _, class := range []struct {
		name string
		keep time.Duration
	}{{"SUCCEEDED", c.KeepSucceeded}, {"FAILED", c.KeepFailed}, {"CANCELLED", c.KeepCancelled}, {"EVENTS", c.KeepEvents}} {
		complain(class.keep >= 0, "TRAPEZE_RETENTION_%s=%s: want 0 (keep) or more", class.name, class.keep)
	}
	complain(!slices.Contains(c.Kinds, ""), "TRAPEZE_KINDS: an empty name in the list")
	oneOf("TRAPEZE_LOG", c.Log, "debug", "info", "warn", "error")
	oneOf("TRAPEZE_LOG_FORMAT", c.LogFormat, "text", "json")
	for name, url := range map[string]string{"DATABASE_URL": c.DatabaseURL, "TRAPEZE_DATABASE_DIRECT_URL": c.DirectURL} {
		if url == "" || url == "off" && name != "DATABASE_URL" {
			continue
		}
		_, err := dburl.Config(url) // its error hides the password
		complain(err == nil, "%s: %w", name, err)
	}
	if c.LedgerURL != "" {
		ledger, err := url.Parse(c.LedgerURL)
		complain(err == nil && (ledger.Scheme == "http" || ledger.Scheme == "https") && ledger.Host != "",
			"TRAPEZE_LEDGER_URL=%q: want http://host:port/path", c.LedgerURL)
	}
	err := runner.ValidateLanes(c.Lanes)
	complain(err == nil, "TRAPEZE_LANES: %w", err)
	for one := range strings.SplitSeq(c.Server, ",") { // a remote worker may have several
		if c.Server != "" {
			err := ValidServer(strings.TrimSpace(one))
			complain(err == nil, "TRAPEZE_SERVER: %w", err)
		}
	}
	_, err = ListenAddr(c.HTTPAddr)
	complain(err == nil, "TRAPEZE_HTTP_ADDR=%q: %w", c.HTTPAddr, err)
	return append(errs, c.validateAuth()...)
}

// ListenAddr checks where to listen. Without a host it is loopback: to be reached from elsewhere is asked for by name.
func ListenAddr(addr string) (string, error) {
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		return "", errors.New("want host:port, such as 127.0.0.1:8080")
	}
	if n, err := strconv.Atoi(port); err != nil || n < 0 || n > 65535 {
		return "", fmt.Errorf("port %q: want 0 (a free one) to 65535", port)
	}
	ip := net.ParseIP(host)
	switch {
	case host == "", host == "localhost":
		return net.JoinHostPort("127.0.0.1", port), nil
	case ip != nil:
		return addr, nil
	}
	return "", fmt.Errorf("host %q: want an IP address, such as 127.0.0.1, or 0.0.0.0 for all of this machine", host)
}

// Options returns the runner's options. There zero is the default, and negative is off.
func (c *Settings) Options() runner.Options {
	off := func(d time.Duration) time.Duration {
		if d == 0 {
			return -1
		}
		return d
	}
	return runner.Options{
		Name: c.Pod, Version: Version(), Schema: c.Schema, Slots: c.Slots, PollEvery: c.PollInterval, LeaseFor: c.Lease,
		HeartbeatEvery: c.Heartbeat, ShutdownGrace: max(c.ShutdownGrace, 1), MaxAttempts: c.MaxAttempts, MaxCrashes: c.MaxCrashes,
		Timeout: c.Timeout, StaleAfter: c.StaleAfter, MaxAge: c.MaxAge, MinScheduleInterval: c.MinSchedule, ApprovalTTL: c.ApprovalTTL, Disabled: !c.Runner, Kinds: c.Kinds, Lanes: c.Lanes, DirectURL: c.DirectURL,
		RetainSucceeded: off(c.KeepSucceeded), RetainFailed: off(c.KeepFailed), RetainCancelled: off(c.KeepCancelled),
		RetainEvents: off(c.KeepEvents),
	}
}

// MigrationURL returns an address that reaches the database without a pooler in between, where there is such a way.
func (c *Settings) MigrationURL() string {
	if c.DirectURL != "" && c.DirectURL != "off" {
		return c.DirectURL
	}
	return c.DatabaseURL
}

// ValidServer checks the address of a server.
func ValidServer(text string) error {
	u, err := url.Parse(text)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" || u.RawQuery != "" || u.User != nil {
		return fmt.Errorf("%q is no server: want http://host:port or https://host, with the prefix that its API is mounted at", text)
	}
	return nil
}

// Release is the release of this program, if it is one.
var Release string

// Version returns the release, or the module version of this build.
func Version() string {
	if Release != "" {
		return Release
	}
	if info, ok := debug.ReadBuildInfo(); ok && info.Main.Version != "" {
		return info.Main.Version
	}
	return "(devel)"
}
