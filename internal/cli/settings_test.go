package cli

import (
	"os"
	"reflect"
	"strings"
	"testing"

	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/internal/envvar"
)

// set sets the given variables and clears all others until the test ends.
func set(t *testing.T, values map[string]string) {
	t.Helper()
	for _, one := range envvar.Variables() {
		t.Setenv(one.Name, "") // restores the value after the test
		os.Unsetenv(one.Name)
	}
	for name, value := range values {
		t.Setenv(name, value)
	}
}

func TestMistakesInAllVariables(t *testing.T) {
	is := is.New(t)
	wrong := map[string]string{
		"TRAPEZE_SLOTS": "many", "TRAPEZE_SLOT": "4", "DATABASE_URL": "postgres://h:x/y", // variables of the runner
		"TRAPEZE_AUTH": "everybody", "TRAPEZE_HTTP_ADDR": "example.org:8080", // variables of the API
		"TRAPEZE_LOG": "loud", "TRAPEZE_LOG_FORMAT": "xml", "TRAPEZE_LEDGER_URL": "ledger", "TRAPEZE_SERVER": "here", "TRAPEZE_DEMO_HANDLERS": "perhaps",
	}
	set(t, wrong)
	_, err := Load()
	is.True(err != nil)
	is.Equal(Code(err), CodeUsage)
	for name := range wrong {
		if strings.Count(err.Error(), name+"=")+strings.Count(err.Error(), name+":") != 1 {
			t.Errorf("%s is not named exactly once in:\n%v", name, err)
		}
	}
}

// TestVariablesLoadedByDocumentedPackage sets one variable at a time and checks which package's settings change.
func TestVariablesLoadedByDocumentedPackage(t *testing.T) {
	values := map[string]string{
		"DATABASE_URL": "postgres://app@db/app", "TRAPEZE_DATABASE_DIRECT_URL": "off", "TRAPEZE_SCHEMA": "other", "TRAPEZE_HTTP_ADDR": "127.0.0.1:9",
		"TRAPEZE_POD_NAME": "web-1", "TRAPEZE_SLOTS": "7", "TRAPEZE_POLL_INTERVAL": "3s", "TRAPEZE_LEASE_DURATION": "60s", "TRAPEZE_HEARTBEAT_INTERVAL": "1s",
		"TRAPEZE_SHUTDOWN_GRACE": "7s", "TRAPEZE_MAX_ATTEMPTS": "7", "TRAPEZE_MAX_CRASHES": "7", "TRAPEZE_TIMEOUT": "7s", "TRAPEZE_INACTIVITY_TIMEOUT": "7s",
		"TRAPEZE_MIN_SCHEDULE_INTERVAL": "7s", "TRAPEZE_MAX_AGE": "7s", "TRAPEZE_APPROVAL_TTL": "7s", "TRAPEZE_FOUR_EYES": "true", "TRAPEZE_RUNNER": "false", "TRAPEZE_CLAIM_AHEAD": "false", "TRAPEZE_KINDS": "a",
		"TRAPEZE_LANES": "a=1", "TRAPEZE_RETENTION_SUCCEEDED": "7s", "TRAPEZE_RETENTION_FAILED": "7s", "TRAPEZE_RETENTION_CANCELLED": "7s",
		"TRAPEZE_RETENTION_EVENTS": "7s", "TRAPEZE_SERVER": "http://here:80", "TRAPEZE_TOKEN": "t", "TRAPEZE_AUTH": "none", "TRAPEZE_TOKENS_FILE": "f",
		"TRAPEZE_JWT_KEYS_FILE": "f", "TRAPEZE_TRUSTED_PROXIES": "10.0.0.1", "TRAPEZE_HOSTS": "h", "TRAPEZE_TLS_CERT": "f", "TRAPEZE_TLS_KEY": "f",
		"TRAPEZE_TLS_CLIENT_CA": "f", "TRAPEZE_STREAMS_PER_PRINCIPAL": "7", "TRAPEZE_DEMO_HANDLERS": "true", "TRAPEZE_LEDGER_URL": "http://here:80", "TRAPEZE_LOG": "debug", "TRAPEZE_LOG_FORMAT": "json",
	}
	// Some variables are valid only if others are set.
	before := map[string]map[string]string{
		"TRAPEZE_AUTH":     {"TRAPEZE_TOKENS_FILE": "f"},
		"TRAPEZE_TLS_CERT": {"TRAPEZE_TLS_CERT": "e", "TRAPEZE_TLS_KEY": "f"}, "TRAPEZE_TLS_KEY": {"TRAPEZE_TLS_CERT": "f", "TRAPEZE_TLS_KEY": "e"},
		"TRAPEZE_TLS_CLIENT_CA": {"TRAPEZE_TLS_CERT": "f", "TRAPEZE_TLS_KEY": "f"},
	}
	read := func(t *testing.T) Settings {
		t.Helper()
		c, err := Load()
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	if len(envvar.Variables()) != len(values) {
		t.Errorf("there are %d variables, this test has %d", len(envvar.Variables()), len(values))
	}
	parts := map[string]string{"Runner": "runner/env", "API": "api/env", "Program": "commands"}
	for _, variable := range envvar.Variables() {
		name, by := variable.Name, parts[variable.Part]
		t.Run(name, func(t *testing.T) {
			is := is.New(t)
			set(t, before[name])
			was := read(t)
			t.Setenv(name, values[name])
			now := read(t)
			var changed []string
			for _, part := range []struct {
				name string
				same bool
			}{
				{"runner/env", reflect.DeepEqual(was.Config, now.Config)}, {"api/env", reflect.DeepEqual(was.API, now.API)},
				{"commands", was.Program == now.Program},
			} {
				if !part.same {
					changed = append(changed, part.name)
				}
			}
			is.Equal(changed, []string{by}) // loaded by this package only
		})
	}
}
