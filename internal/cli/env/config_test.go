package env

import (
	"github.com/trapeze-run/trapeze/internal/cli/exit"

	"strings"
	"testing"
	"time"

	"github.com/matryer/is"
)

func TestEveryWrongVariableIsNamedAtOnce(t *testing.T) {
	is := is.New(t)
	wrong := map[string]string{
		"TRAPEZE_SLOTS": "many", "TRAPEZE_LEASE": "8", "TRAPEZE_POLL_INTERVAL": "10ms", "TRAPEZE_SCHEMA": "Robert'; --",
		"TRAPEZE_SLOT": "4", "TRAPEZE_LANES": "a=x:b", "TRAPEZE_AUTH": "everybody", "TRAPEZE_HTTP_ADDR": "example.org:8080",
		"TRAPEZE_LOG": "loud", "TRAPEZE_RETENTION_EVENTS": "-1h", "TRAPEZE_MAX_AGE": "-24h", "TRAPEZE_APPROVAL_TTL": "a day", "TRAPEZE_STALE_AFTER": "-1s", "TRAPEZE_RUNNER": "perhaps",
		"TRAPEZE_LEDGER_URL": "ledger", "TRAPEZE_MAX_CRASHES": "0", "DATABASE_URL": "postgres://h:x/y",
	}
	for name, value := range wrong {
		t.Setenv(name, value)
	}
	_, err := Load()
	is.True(err != nil)
	is.Equal(exit.Code(err), exit.CodeUsage)
	for name := range wrong {
		is.True(strings.Contains(err.Error(), name)) // named
	}
}

func TestDefaultsAreThoseOfTheContract(t *testing.T) {
	is := is.New(t)
	c, err := Load()
	is.NoErr(err)
	o := c.Options()
	is.Equal(o.PollEvery, 10*time.Second)
	is.Equal(o.LeaseFor, 8*time.Second)
	is.Equal(o.HeartbeatEvery, 2*time.Second)
	is.Equal(o.ShutdownGrace, 20*time.Second)
	is.Equal(o.RetainFailed, 168*time.Hour)
	is.Equal(o.MaxAge, time.Duration(0)) // no limit
	is.Equal(o.ApprovalTTL, time.Duration(0))
	is.Equal(o.StaleAfter, time.Duration(0))
	is.Equal(o.MaxAttempts, 5)
	is.Equal(o.MaxCrashes, 3)
	is.True(!o.Disabled)
	is.Equal(c.HTTPAddr, "127.0.0.1:8080")
}

func TestValuesAtTheirLimits(t *testing.T) {
	is := is.New(t)
	for name, value := range map[string]string{
		"TRAPEZE_DEMO_HANDLERS": "true", "TRAPEZE_POLL_INTERVAL": "100ms", "TRAPEZE_LEASE": "1500ms", "TRAPEZE_KINDS": "a,b",
		"TRAPEZE_RETENTION_EVENTS": "0", "TRAPEZE_SHUTDOWN_GRACE": "0", "TRAPEZE_STALE_AFTER": "0", "TRAPEZE_MAX_AGE": "0", "TRAPEZE_APPROVAL_TTL": "0", "TRAPEZE_RUNNER": "false",
		"TRAPEZE_DATABASE_DIRECT_URL": "off", "TRAPEZE_AUTH": "none",
	} {
		t.Setenv(name, value)
	}
	c, err := Load()
	is.NoErr(err)
	o := c.Options()
	is.Equal(o.PollEvery, 100*time.Millisecond) // allowed with demo handlers
	is.Equal(o.HeartbeatEvery, 500*time.Millisecond)
	is.Equal(o.Kinds, []string{"a", "b"})
	is.True(o.RetainEvents < 0) // 0 keeps for ever, which the runner spells as negative
	is.True(o.MaxAge == 0 && o.ApprovalTTL == 0)
	is.Equal(o.StaleAfter, time.Duration(0))    // and off, which it is by default
	is.True(o.ShutdownGrace < time.Millisecond) // 0 is no grace, not the default
	is.True(o.Disabled)
}

func TestAddressesAreListenedOnAsTheyAreGiven(t *testing.T) {
	for addr, want := range map[string]string{
		"127.0.0.1:8080": "127.0.0.1:8080", ":0": "127.0.0.1:0", "localhost:80": "127.0.0.1:80", "[::1]:80": "[::1]:80",
		"0.0.0.0:80": "0.0.0.0:80", "10.0.0.1:80": "10.0.0.1:80", "example.org:80": "", "127.0.0.1": "", "127.0.0.1:99999": "",
	} {
		t.Run(addr, func(t *testing.T) {
			is := is.New(t)
			got, err := ListenAddr(addr)
			is.Equal(got, want)
			is.Equal(err == nil, want != "")
		})
	}
}
