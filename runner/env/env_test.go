package env_test

import (
	"errors"
	"os"
	"reflect"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/internal/envvar"
	"github.com/trapeze-run/trapeze/internal/pgtest"
	"github.com/trapeze-run/trapeze/runner"
	"github.com/trapeze-run/trapeze/runner/env"
	"github.com/trapeze-run/trapeze/runner/migrate"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

// set sets the given variables and unsets all others until the test ends.
func set(t *testing.T, values map[string]string) {
	t.Helper()
	for _, one := range envvar.Variables() {
		t.Setenv(one.Name, "") // so that the test restores the value when it ends
		os.Unsetenv(one.Name)
	}
	for name, value := range values {
		t.Setenv(name, value)
	}
}

func TestInvalidVariablesReportedTogether(t *testing.T) {
	is := is.New(t)
	wrong := map[string][2]string{
		"TRAPEZE_SLOTS": {"many", "a whole number"}, "TRAPEZE_LEASE_DURATION": {"8", "a duration"}, "TRAPEZE_POLL_INTERVAL": {"10ms", "at least 1s"},
		"TRAPEZE_SCHEMA": {"Robert'; --", "a-z"}, "TRAPEZE_LANES": {"a=x:b", "name=slots:kinds"}, "TRAPEZE_RETENTION_EVENTS": {"-1h", "0 (keep) or more"},
		"TRAPEZE_MAX_AGE": {"-24h", "0 (off) or more"}, "TRAPEZE_APPROVAL_TTL": {"a day", "a duration"}, "TRAPEZE_INACTIVITY_TIMEOUT": {"-1s", "0 (off)"},
		"TRAPEZE_RUNNER": {"perhaps", "true or false"}, "TRAPEZE_MAX_CRASHES": {"0", "at least 1"}, "DATABASE_URL": {"postgres://h:x/y", "port"},
		"TRAPEZE_DATABASE_DIRECT_URL": {"postgres://h:x/y", "port"}, "TRAPEZE_SLOT": {"4", "unknown variable"},
	}
	values := map[string]string{}
	for name, one := range wrong {
		values[name] = one[0]
	}
	set(t, values)
	config, err := env.Load()
	is.True(err != nil)
	is.Equal(config, env.Config{}) // no partial configuration that a caller could use by mistake
	for name, one := range wrong {
		line := ""
		for each := range strings.SplitSeq(err.Error(), "\n") {
			if strings.HasPrefix(each, name+"=") || strings.HasPrefix(each, name+":") {
				line = each
			}
		}
		if !strings.Contains(line, one[1]) {
			t.Errorf("%s: %q does not say %q", name, line, one[1])
		}
	}
}

func TestEnvironmentVariablesOfOtherParts(t *testing.T) {
	is := is.New(t)
	set(t, map[string]string{"TRAPEZE_AUTH": "token", "TRAPEZE_TOKENS_FILE": "tokens.json", "TRAPEZE_LOG": "debug"})
	_, err := env.Load()
	is.NoErr(err)
}

func TestEmptyEnvironment(t *testing.T) {
	is := is.New(t)
	set(t, nil)
	c, err := env.Load()
	is.NoErr(err)
	o := c.Options
	is.Equal(c.DatabaseURL, "")
	is.Equal(o.PollInterval, 10*time.Second)
	is.Equal(o.LeaseDuration, 8*time.Second)
	is.Equal(o.HeartbeatInterval, 2*time.Second)
	is.Equal(o.ShutdownGrace, 20*time.Second)
	is.Equal(o.RetainFailed, 168*time.Hour)
	is.Equal(o.MaxAge, time.Duration(0)) // no limit
	is.Equal(o.ApprovalTTL, time.Duration(0))
	is.Equal(o.InactivityTimeout, time.Duration(0))
	is.Equal(o.MaxAttempts, 5)
	is.Equal(o.MaxCrashes, 3)
	is.True(!o.Disabled && !o.NoClaimAhead)
}

// Kubernetes sets these variables in every pod of a namespace that has services named trapeze, trapeze-remote and trapeze-slots.
func TestKubernetesServiceVariables(t *testing.T) {
	is := is.New(t)
	links := map[string]string{
		"TRAPEZE_REMOTE_PORT": "udp://10.0.0.2:53", "TRAPEZE_SLOTS_SERVICE_HOST": "fd00::3", "TRAPEZE_SLOTS_PORT": "sctp://[fd00::3]:9000",
		"TRAPEZE_SLOTS_PORT_9000_SCTP": "sctp://[fd00::3]:9000", "TRAPEZE_REMOTE_PORT_53_UDP_PROTO": "udp",
	}
	for _, name := range []string{"TRAPEZE", "TRAPEZE_REMOTE"} {
		links[name+"_SERVICE_HOST"], links[name+"_SERVICE_PORT"], links[name+"_SERVICE_PORT_HTTP_2"] = "10.0.0.1", "80", "80"
		links[name+"_PORT_80_TCP"], links[name+"_PORT_80_TCP_PROTO"] = "tcp://10.0.0.1:80", "tcp"
		links[name+"_PORT_80_TCP_PORT"], links[name+"_PORT_80_TCP_ADDR"] = "80", "10.0.0.1"
	}
	links["TRAPEZE_PORT"] = "tcp://10.0.0.1:80"
	set(t, links)
	_, err := env.Load()
	is.NoErr(err)

	for name, value := range map[string]string{
		"TRAPEZE_PORT": "8080", "TRAPEZE_HTTP_PORT": "8080", "TRAPEZE_SERVICE": "a", "TRAPEZE_SERVICE_NAME": "a", "TRAPEZE_PORTS": "tcp://a:1", "TRAPEZE_SERVICE_HOSTS": "a",
	} {
		set(t, map[string]string{name: value})
		_, err := env.Load()
		is.True(err != nil) // a misspelled variable
	}
}

func TestEmptyVariablesAreUnset(t *testing.T) {
	is := is.New(t)
	set(t, nil)
	want, err := env.Load()
	is.NoErr(err)
	for _, empty := range []string{"", " "} {
		values := map[string]string{}
		for _, one := range envvar.Variables() {
			values[one.Name] = empty
		}
		set(t, values)
		got, err := env.Load()
		is.NoErr(err)
		is.Equal(got, want)
	}
}

func TestListsAcceptSpaces(t *testing.T) {
	is := is.New(t)
	set(t, map[string]string{"TRAPEZE_KINDS": "a, b ,c", "TRAPEZE_LANES": " slow = 2 : a + b , other = "})
	c, err := env.Load()
	is.NoErr(err)
	two := 2
	is.Equal(c.Options.Kinds, []string{"a", "b", "c"})
	is.True(reflect.DeepEqual(c.Options.Lanes, []runner.LaneSetup{{Name: "slow", Slots: &two, Kinds: []string{"a", "b"}}, {Name: "other"}}))
}

// GOMAXPROCS follows the CPU limit of a container; the number of the machine's CPUs does not.
func TestDefaultSlots(t *testing.T) {
	is := is.New(t)
	set(t, nil)
	before := runtime.GOMAXPROCS(runtime.NumCPU() + 3)
	defer runtime.GOMAXPROCS(before)
	c, err := env.Load()
	is.NoErr(err)
	is.Equal(c.Options.Slots, 4*(runtime.NumCPU()+3))
}

func TestValuesAtTheirLimits(t *testing.T) {
	is := is.New(t)
	set(t, map[string]string{
		"TRAPEZE_DEMO_HANDLERS": "true", "TRAPEZE_POLL_INTERVAL": "100ms", "TRAPEZE_LEASE_DURATION": "1500ms", "TRAPEZE_KINDS": "a,b",
		"TRAPEZE_RETENTION_EVENTS": "0", "TRAPEZE_SHUTDOWN_GRACE": "0", "TRAPEZE_INACTIVITY_TIMEOUT": "0", "TRAPEZE_MAX_AGE": "0", "TRAPEZE_APPROVAL_TTL": "0",
		"TRAPEZE_RUNNER": "false", "TRAPEZE_CLAIM_AHEAD": "0", "TRAPEZE_DATABASE_DIRECT_URL": "off", "TRAPEZE_LANES": "slow=2:a+b, other=",
	})
	c, err := env.Load()
	is.NoErr(err)
	o, two := c.Options, 2
	is.Equal(o.PollInterval, 100*time.Millisecond) // the minimum, which is allowed with demo handlers
	is.Equal(o.HeartbeatInterval, 500*time.Millisecond)
	is.Equal(o.Kinds, []string{"a", "b"})
	is.True(o.RetainEvents < 0) // 0 keeps events forever; the runner's options use a negative value for that
	is.True(o.MaxAge == 0 && o.ApprovalTTL == 0)
	is.Equal(o.InactivityTimeout, time.Duration(0)) // 0 turns it off, which is the default
	is.True(o.ShutdownGrace < time.Millisecond)     // 0 means no grace period, not the default
	is.True(o.Disabled && o.NoClaimAhead)
	is.True(reflect.DeepEqual(o.Lanes, []runner.LaneSetup{{Name: "slow", Slots: &two, Kinds: []string{"a", "b"}}, {Name: "other"}}))
}

// Each variable must set exactly one option, and the guide must list the options that no variable sets.
func TestEachVariableSetsItsOption(t *testing.T) {
	is := is.New(t)
	values := map[string]string{
		"TRAPEZE_DATABASE_DIRECT_URL": "off", "TRAPEZE_SCHEMA": "other", "TRAPEZE_POD_NAME": "web-1", "TRAPEZE_RUNNER": "false", "TRAPEZE_CLAIM_AHEAD": "false", "TRAPEZE_SLOTS": "77",
		"TRAPEZE_KINDS": "a", "TRAPEZE_LANES": "slow=2", "TRAPEZE_POLL_INTERVAL": "77s", "TRAPEZE_LEASE_DURATION": "77s", "TRAPEZE_HEARTBEAT_INTERVAL": "1s",
		"TRAPEZE_SHUTDOWN_GRACE": "77s", "TRAPEZE_MIN_SCHEDULE_INTERVAL": "77s", "TRAPEZE_MAX_ATTEMPTS": "77", "TRAPEZE_MAX_CRASHES": "77",
		"TRAPEZE_TIMEOUT": "77s", "TRAPEZE_INACTIVITY_TIMEOUT": "77s", "TRAPEZE_MAX_AGE": "77s", "TRAPEZE_APPROVAL_TTL": "77s", "TRAPEZE_FOUR_EYES": "true", "TRAPEZE_RETENTION_SUCCEEDED": "77h",
		"TRAPEZE_RETENTION_FAILED": "77h", "TRAPEZE_RETENTION_CANCELLED": "77h", "TRAPEZE_RETENTION_EVENTS": "77h",
	}
	load := func(values map[string]string) reflect.Value {
		set(t, values)
		c, err := env.Load()
		is.NoErr(err)
		return reflect.ValueOf(c.Options)
	}
	defaults := load(nil)
	options, setBy := defaults.Type(), map[string]string{}
	for field := range reflect.TypeFor[envvar.Runner]().Fields() {
		name := field.Tag.Get("envconfig")
		if name == "DATABASE_URL" {
			continue
		}
		got := load(map[string]string{name: values[name]})
		var changed []string
		for i := range options.NumField() {
			if !reflect.DeepEqual(got.Field(i).Interface(), defaults.Field(i).Interface()) {
				changed = append(changed, options.Field(i).Name)
			}
		}
		is.Equal(len(changed), 1) // the variable sets exactly one option
		is.Equal(setBy[changed[0]], "")
		setBy[changed[0]] = name
	}
	page, err := os.ReadFile("../../docs/embedding.md")
	is.NoErr(err)
	_, list, _ := strings.Cut(string(page), "The following runner options have no variable: ")
	list, _, _ = strings.Cut(list, ".\n")
	for field := range options.Fields() {
		if listed := strings.Contains(list, "`"+field.Name+"`"); listed != (setBy[field.Name] == "") {
			t.Errorf("option %s is set by %q; listed in the guide as having no variable: %t", field.Name, setBy[field.Name], listed)
		}
	}
}

// Load also reports values that New would reject, together with all other mistakes.
func TestEnvironmentValuesBeyondRunnerLimits(t *testing.T) {
	is := is.New(t)
	set(t, map[string]string{"TRAPEZE_SLOTS": "1000000", "TRAPEZE_MAX_ATTEMPTS": "3000000000"})
	_, err := env.Load()
	is.True(err != nil && strings.Contains(err.Error(), "TRAPEZE_SLOTS=1000000: want 1 to 10000"))
	is.True(strings.Contains(err.Error(), "TRAPEZE_MAX_ATTEMPTS=3000000000: want 1 to 2147483647"))
}

func TestHostRunnerFromEnvironment(t *testing.T) {
	is := is.New(t)
	set(t, map[string]string{"DATABASE_URL": pgtest.EmptyURL(t), "TRAPEZE_SCHEMA": "jobs_of_host", "TRAPEZE_POD_NAME": "web-1"})
	config, err := env.Load()
	is.NoErr(err)
	pool, err := config.Open(t.Context())
	is.NoErr(err)
	defer pool.Close()
	is.NoErr(migrate.Up(t.Context(), pool, config.Options))
	r, err := runner.New(pool, config.Options)
	is.NoErr(err)
	defer r.Close()
	is.Equal(r.PodName(), "web-1")
	var there bool
	is.NoErr(pool.QueryRow(t.Context(), "select to_regclass('jobs_of_host.jobs') is not null").Scan(&there))
	is.True(there) // the tables are in the schema from the variable
}

func TestPoolOnReadOnlyServer(t *testing.T) {
	is := is.New(t)
	_, err := env.Config{}.Open(t.Context())
	is.True(errors.Is(err, env.ErrDatabaseURL)) // the variable is not set
	_, err = env.Config{DatabaseURL: "postgres://h:x/y"}.Open(t.Context())
	is.True(errors.Is(err, env.ErrDatabaseURL))
	_, err = env.Config{DatabaseURL: "postgres://app:secret@127.0.0.1:1/app"}.Open(t.Context())
	is.True(err != nil && !errors.Is(err, env.ErrDatabaseURL)) // the server may respond later
	is.True(!strings.Contains(err.Error(), "secret"))

	readOnly := env.Config{DatabaseURL: pgtest.EmptyURL(t)}
	t.Setenv("PGOPTIONS", "-c default_transaction_read_only=on")
	_, err = readOnly.Open(t.Context())
	is.True(errors.Is(err, env.ErrReadOnly))
	pool, err := readOnly.OpenAny(t.Context())
	is.NoErr(err)
	pool.Close()
}
