package envvar

import (
	"runtime"
	"time"
)

// Runner holds the variables of a runner and its database. Package runner/env checks them and converts them to
// runner.Options.
type Runner struct {
	// The address of PostgreSQL 14 or newer: a URL or `key=value` pairs, several hosts and pool parameters such as `pool_max_conns`
	// included. A pod connects only to a server that accepts writes, unless `target_session_attrs` is set.
	DatabaseURL string `envconfig:"DATABASE_URL"`
	// The address that bypasses a transaction pooler, for LISTEN and the maintenance lock. `off` disables LISTEN.
	DirectURL string `envconfig:"TRAPEZE_DATABASE_DIRECT_URL"`
	// The schema of all tables. It matches `^[a-z_][a-z0-9_]{0,47}$`.
	Schema string `envconfig:"TRAPEZE_SCHEMA"`

	// The display name of the pod. Default: the host name.
	Pod string `envconfig:"TRAPEZE_POD"`
	// `false`: the pod submits jobs and recovers the jobs of dead pods, but runs none.
	Runner bool `envconfig:"TRAPEZE_RUNNER"`
	// The number of jobs that the pod runs at the same time, in all lanes together.
	Slots int `envconfig:"TRAPEZE_SLOTS"`
	// `true`: while handlers return sooner than a claim takes, the pod claims up to 10 more jobs for each slot, at most 100, each for at most 200 ms.
	// `false`: no more jobs than slots are free.
	ClaimAhead bool `envconfig:"TRAPEZE_CLAIM_AHEAD"`
	// The kinds that the pod runs, separated by commas. Default: all that have a handler.
	Kinds []string `envconfig:"TRAPEZE_KINDS"`
	// The lanes to create, such as `interactive=2:mail+sms,bulk=1:import`: name, slots of all pods together, kinds. A lane that exists
	// is left as it is.
	Lanes string `envconfig:"TRAPEZE_LANES"`
	// The interval of the safety net, ± 10 %. At least 1 s; with the demo kinds 100 ms.
	PollInterval time.Duration `envconfig:"TRAPEZE_POLL_INTERVAL"`
	// The time after which a silent pod loses its jobs. The same on all pods.
	Lease time.Duration `envconfig:"TRAPEZE_LEASE"`
	// The interval at which a pod renews its lease: at most a third of it.
	Heartbeat time.Duration `envconfig:"TRAPEZE_HEARTBEAT"`
	// The time that handlers have after SIGTERM before their contexts are cancelled.
	ShutdownGrace time.Duration `envconfig:"TRAPEZE_SHUTDOWN_GRACE"`
	// The shortest interval of a schedule that can be set or declared.
	MinSchedule time.Duration `envconfig:"TRAPEZE_MIN_SCHEDULE_INTERVAL"`

	// The number of attempts of a job, if neither the job nor its kind sets one. 1: the first error fails the job.
	MaxAttempts int `envconfig:"TRAPEZE_MAX_ATTEMPTS"`
	// The number of times that the pod of a job may die before the job fails, if its kind sets none.
	MaxCrashes int `envconfig:"TRAPEZE_MAX_CRASHES"`
	// The longest run of a handler, if its kind sets none. 0: no limit.
	Timeout time.Duration `envconfig:"TRAPEZE_TIMEOUT"`
	// The longest time without a sign of life from a handler, if its kind sets none. The attempt then ends and counts. 0: no limit.
	StaleAfter time.Duration `envconfig:"TRAPEZE_STALE_AFTER"`
	// The longest time from the moment a job is due to its end, in lanes that set none. A job that takes longer fails. 0: no limit. The
	// same on all pods.
	MaxAge time.Duration `envconfig:"TRAPEZE_MAX_AGE"`
	// The time after which a job without the approval that it needs is cancelled. 0: no limit. The same on all pods.
	ApprovalTTL time.Duration `envconfig:"TRAPEZE_APPROVAL_TTL"`

	// How long succeeded jobs are kept, in whole days of UTC. 0: for ever.
	KeepSucceeded time.Duration `envconfig:"TRAPEZE_RETENTION_SUCCEEDED"`
	// How long failed jobs are kept. 0: for ever.
	KeepFailed time.Duration `envconfig:"TRAPEZE_RETENTION_FAILED"`
	// How long cancelled jobs are kept. 0: for ever.
	KeepCancelled time.Duration `envconfig:"TRAPEZE_RETENTION_CANCELLED"`
	// How long the history is kept. 0: for ever.
	KeepEvents time.Duration `envconfig:"TRAPEZE_RETENTION_EVENTS"`
}

// API holds the variables of the HTTP API. Package api/env checks them and converts them to api.Options.
type API struct {
	// The address on which `serve` listens. Without a host: loopback. Port 0: any free port.
	Addr string `envconfig:"TRAPEZE_HTTP_ADDR"`
	// How callers authenticate: `token`, `jwt`, `header` (set by a proxy), or `none`, which needs a loopback address. If it is unset,
	// there is no tokens file and the address is loopback, it is `none`.
	Auth string `envconfig:"TRAPEZE_AUTH"`
	// The file of tokens for `TRAPEZE_AUTH=token`.
	TokensFile string `envconfig:"TRAPEZE_TOKENS_FILE"`
	// The file with issuer, audience and keys for `TRAPEZE_AUTH=jwt`.
	JWTKeysFile string `envconfig:"TRAPEZE_JWT_KEYS_FILE"`
	// The addresses and networks, separated by commas, whose `X-Forwarded-…` headers are trusted. `TRAPEZE_AUTH=header` needs it.
	TrustedProxies []string `envconfig:"TRAPEZE_TRUSTED_PROXIES"`
	// The host names, separated by commas, that a proxy passes on, with `TRAPEZE_AUTH=header` on a loopback address.
	Hosts []string `envconfig:"TRAPEZE_HOSTS"`
	// The file of the certificate chain, in PEM. `serve` then speaks HTTPS. It is read again at each handshake.
	TLSCert string `envconfig:"TRAPEZE_TLS_CERT"`
	// The file of the private key of the certificate, in PEM.
	TLSKey string `envconfig:"TRAPEZE_TLS_KEY"`
	// The file of the authority, in PEM, that must have signed the certificate of every client.
	TLSClientCA string `envconfig:"TRAPEZE_TLS_CLIENT_CA"`
}

// Program holds the variables that only the commands use: the log, the server that commands call, and the demo kinds.
type Program struct {
	// The log level, on standard error: `debug`, `info`, `warn` or `error`.
	Log string `envconfig:"TRAPEZE_LOG"`
	// The log format: `text` or `json`.
	LogFormat string `envconfig:"TRAPEZE_LOG_FORMAT"`

	// The address of the HTTP API that commands use instead of `DATABASE_URL`.
	Server string `envconfig:"TRAPEZE_SERVER"`
	// The token that commands send to that server.
	Token string `envconfig:"TRAPEZE_TOKEN"`

	// `true`: register the demo kinds.
	DemoHandlers bool `envconfig:"TRAPEZE_DEMO_HANDLERS"`
	// The URL to which the demo kinds report.
	LedgerURL string `envconfig:"TRAPEZE_LEDGER_URL"`
}

// all holds every variable. Its value from defaults holds the value of each variable that is not set.
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
