package envvar

import (
	"runtime"
	"time"
)

// Runner holds the variables of a runner and its database. Package runner/env checks them and makes runner.Options of them.
type Runner struct {
	DatabaseURL string `envconfig:"DATABASE_URL"`
	DirectURL   string `envconfig:"TRAPEZE_DATABASE_DIRECT_URL"`
	Schema      string `envconfig:"TRAPEZE_SCHEMA"`

	Pod           string        `envconfig:"TRAPEZE_POD"`
	Runner        bool          `envconfig:"TRAPEZE_RUNNER"`
	Slots         int           `envconfig:"TRAPEZE_SLOTS"`
	ClaimAhead    bool          `envconfig:"TRAPEZE_CLAIM_AHEAD"`
	Kinds         []string      `envconfig:"TRAPEZE_KINDS"`
	Lanes         string        `envconfig:"TRAPEZE_LANES"`
	PollInterval  time.Duration `envconfig:"TRAPEZE_POLL_INTERVAL"`
	Lease         time.Duration `envconfig:"TRAPEZE_LEASE"`
	Heartbeat     time.Duration `envconfig:"TRAPEZE_HEARTBEAT"`
	ShutdownGrace time.Duration `envconfig:"TRAPEZE_SHUTDOWN_GRACE"`
	MinSchedule   time.Duration `envconfig:"TRAPEZE_MIN_SCHEDULE_INTERVAL"`

	MaxAttempts int           `envconfig:"TRAPEZE_MAX_ATTEMPTS"`
	MaxCrashes  int           `envconfig:"TRAPEZE_MAX_CRASHES"`
	Timeout     time.Duration `envconfig:"TRAPEZE_TIMEOUT"`
	StaleAfter  time.Duration `envconfig:"TRAPEZE_STALE_AFTER"`
	MaxAge      time.Duration `envconfig:"TRAPEZE_MAX_AGE"`
	ApprovalTTL time.Duration `envconfig:"TRAPEZE_APPROVAL_TTL"`

	KeepSucceeded time.Duration `envconfig:"TRAPEZE_RETENTION_SUCCEEDED"`
	KeepFailed    time.Duration `envconfig:"TRAPEZE_RETENTION_FAILED"`
	KeepCancelled time.Duration `envconfig:"TRAPEZE_RETENTION_CANCELLED"`
	KeepEvents    time.Duration `envconfig:"TRAPEZE_RETENTION_EVENTS"`
}

// API holds the variables of the HTTP API. Package api/env checks them and makes api.Options of them.
type API struct {
	Addr           string   `envconfig:"TRAPEZE_HTTP_ADDR"`
	Auth           string   `envconfig:"TRAPEZE_AUTH"`
	TokensFile     string   `envconfig:"TRAPEZE_TOKENS_FILE"`
	JWTKeysFile    string   `envconfig:"TRAPEZE_JWT_KEYS_FILE"`
	TrustedProxies []string `envconfig:"TRAPEZE_TRUSTED_PROXIES"`
	Hosts          []string `envconfig:"TRAPEZE_HOSTS"`
	TLSCert        string   `envconfig:"TRAPEZE_TLS_CERT"`
	TLSKey         string   `envconfig:"TRAPEZE_TLS_KEY"`
	TLSClientCA    string   `envconfig:"TRAPEZE_TLS_CLIENT_CA"`
}

// Program holds the variables of the commands alone: the log, the server that commands act through, and the demo kinds.
type Program struct {
	Log       string `envconfig:"TRAPEZE_LOG"`
	LogFormat string `envconfig:"TRAPEZE_LOG_FORMAT"`

	Server string `envconfig:"TRAPEZE_SERVER"`
	Token  string `envconfig:"TRAPEZE_TOKEN"`

	DemoHandlers bool   `envconfig:"TRAPEZE_DEMO_HANDLERS"`
	LedgerURL    string `envconfig:"TRAPEZE_LEDGER_URL"`
}

// all holds every variable. Its value from defaults is what holds where a variable is not set.
type all struct {
	Runner
	API
	Program
}

func defaults() all {
	return all{
		Runner: Runner{
			Schema: "trapeze", Runner: true, ClaimAhead: true, Slots: 4 * runtime.NumCPU(), PollInterval: 10 * time.Second, Lease: 8 * time.Second, Heartbeat: 2 * time.Second,
			ShutdownGrace: 20 * time.Second, MinSchedule: time.Second, MaxAttempts: 5, MaxCrashes: 3,
			KeepSucceeded: 48 * time.Hour, KeepFailed: 168 * time.Hour, KeepCancelled: 48 * time.Hour, KeepEvents: 168 * time.Hour,
		},
		API:     API{Addr: "127.0.0.1:8080", Auth: "token"},
		Program: Program{Log: "info", LogFormat: "text"},
	}
}
