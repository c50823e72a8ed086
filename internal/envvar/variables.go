package envvar

import (
	"runtime"
	"time"
)

// Runner holds the variables for a runner and its database. Package runner/env validates them and converts them to runner.Options.
type Runner struct {
	// The address of PostgreSQL 14 or newer, as a URL or as `key=value` pairs. It can contain several hosts and pool parameters such as
	// `pool_max_conns`. A pod connects only to a server that accepts writes, unless `target_session_attrs` is set.
	DatabaseURL string `envconfig:"DATABASE_URL"`
	// An address that bypasses a transaction pooler, for LISTEN and the maintenance lock. `off` disables LISTEN.
	DirectURL string `envconfig:"TRAPEZE_DATABASE_DIRECT_URL"`
	// The schema of all tables. It must match `^[a-z_][a-z0-9_]{0,47}$`, and must not be a reserved word of SQL.
	Schema string `envconfig:"TRAPEZE_SCHEMA"`

	// The display name of the pod. Defaults to the host name.
	Pod string `envconfig:"TRAPEZE_POD_NAME"`
	// If `false`, the pod submits jobs and recovers the jobs of dead pods, but runs none.
	Runner bool `envconfig:"TRAPEZE_RUNNER"`
	// The number of jobs that the pod runs at the same time, across all lanes.
	Slots int `envconfig:"TRAPEZE_SLOTS"`
	// If `true`, the pod claims more jobs than it has free slots while handlers return faster than a claim takes: up to 40 for each slot,
	// at most 200, each held for at most 200 ms. If `false`, it claims only as many jobs as it has free slots.
	ClaimAhead bool `envconfig:"TRAPEZE_CLAIM_AHEAD"`
	// The kinds that the pod runs, separated by commas. Defaults to all kinds that have a handler.
	Kinds []string `envconfig:"TRAPEZE_KINDS"`
	// The lanes to create, such as `interactive=2:mail+sms,bulk=1:import`: name, slots across all pods, kinds. Existing lanes are not
	// changed.
	Lanes string `envconfig:"TRAPEZE_LANES"`
	// How often the safety net polls for jobs, ± 10 %. At least 1 s, or 100 ms with the demo kinds.
	PollInterval time.Duration `envconfig:"TRAPEZE_POLL_INTERVAL"`
	// How long after its last heartbeat a pod is considered dead and its jobs are recovered. Must be the same on all pods.
	Lease time.Duration `envconfig:"TRAPEZE_LEASE_DURATION"`
	// How often a pod renews its lease. At most a third of the lease.
	Heartbeat time.Duration `envconfig:"TRAPEZE_HEARTBEAT_INTERVAL"`
	// How long handlers can continue after SIGTERM before their contexts are cancelled.
	ShutdownGrace time.Duration `envconfig:"TRAPEZE_SHUTDOWN_GRACE"`
	// The shortest allowed interval of a schedule.
	MinSchedule time.Duration `envconfig:"TRAPEZE_MIN_SCHEDULE_INTERVAL"`

	// The number of attempts of a job, if neither the job nor its kind sets one. With 1, the first error fails the job.
	MaxAttempts int `envconfig:"TRAPEZE_MAX_ATTEMPTS"`
	// How many times a job's pod can die before the job fails, if the job's kind sets no limit.
	MaxCrashes int `envconfig:"TRAPEZE_MAX_CRASHES"`
	// The longest time that a handler can run, if its kind sets none. 0 means no limit.
	Timeout time.Duration `envconfig:"TRAPEZE_TIMEOUT"`
	// The longest time that a handler can run without activity, such as progress or an event, if its kind sets none. The attempt then ends
	// and counts as failed. 0 means no limit.
	InactivityTimeout time.Duration `envconfig:"TRAPEZE_INACTIVITY_TIMEOUT"`
	// The longest time from when a job is due until it ends, in lanes that set none. A job that takes longer fails. 0 means no limit. Must
	// be the same on all pods.
	MaxAge time.Duration `envconfig:"TRAPEZE_MAX_AGE"`
	// How long a job can wait for approval before it is cancelled. 0 means no limit. Must be the same on all pods.
	ApprovalTTL time.Duration `envconfig:"TRAPEZE_APPROVAL_TTL"`
	// If `true`, a person other than the submitter must approve a job. It needs authentication with a name for each person. Must be the same
	// on all pods.
	FourEyes bool `envconfig:"TRAPEZE_FOUR_EYES"`

	// How long succeeded jobs are kept, in whole days (UTC). 0 means forever.
	KeepSucceeded time.Duration `envconfig:"TRAPEZE_RETENTION_SUCCEEDED"`
	// How long failed jobs are kept. 0 means forever.
	KeepFailed time.Duration `envconfig:"TRAPEZE_RETENTION_FAILED"`
	// How long cancelled jobs are kept. 0 means forever.
	KeepCancelled time.Duration `envconfig:"TRAPEZE_RETENTION_CANCELLED"`
	// How long the event history is kept. 0 means forever.
	KeepEvents time.Duration `envconfig:"TRAPEZE_RETENTION_EVENTS"`
}

// API holds the variables for the HTTP API. Package api/env validates them and converts them to api.Options.
type API struct {
	// The address on which `serve` listens. Without a host, it listens on loopback. Port 0 selects any free port.
	Addr string `envconfig:"TRAPEZE_HTTP_ADDR"`
	// How callers authenticate: `token`, `jwt`, `header` (set by a proxy), or `none`, which requires a loopback address. If it is not set,
	// `none` applies if the address is loopback and there is no tokens file, and otherwise `token`.
	Auth string `envconfig:"TRAPEZE_AUTH"`
	// The file with the tokens for `TRAPEZE_AUTH=token`.
	TokensFile string `envconfig:"TRAPEZE_TOKENS_FILE"`
	// The file with the issuer, audience and keys for `TRAPEZE_AUTH=jwt`, or with the path or URL of a key set (JWKS).
	JWTKeysFile string `envconfig:"TRAPEZE_JWT_KEYS_FILE"`
	// The addresses and networks, separated by commas, whose `X-Forwarded-…` headers are trusted. Required for `TRAPEZE_AUTH=header`.
	TrustedProxies []string `envconfig:"TRAPEZE_TRUSTED_PROXIES"`
	// The host names, separated by commas, that a proxy passes on. Used with `TRAPEZE_AUTH=header` on a loopback address.
	Hosts []string `envconfig:"TRAPEZE_HOSTS"`
	// The file with the certificate chain, in PEM. If it is set, `serve` uses HTTPS. The file is read again at each handshake.
	TLSCert string `envconfig:"TRAPEZE_TLS_CERT"`
	// The file with the certificate's private key, in PEM.
	TLSKey string `envconfig:"TRAPEZE_TLS_KEY"`
	// The file with the authority, in PEM, that must have signed every client's certificate.
	TLSClientCA string `envconfig:"TRAPEZE_TLS_CLIENT_CA"`
	// The maximum number of live streams that one principal can have open on a pod, from 1 to 10000. It does not apply to
	// `TRAPEZE_AUTH=none`.
	StreamsPerPrincipal int `envconfig:"TRAPEZE_STREAMS_PER_PRINCIPAL"`
}

// Program holds the variables that only the commands use: for the log, the server that commands call, and the demo kinds.
type Program struct {
	// The level of the log on standard error: `debug`, `info`, `warn` or `error`.
	Log string `envconfig:"TRAPEZE_LOG"`
	// The log format: `text` or `json`.
	LogFormat string `envconfig:"TRAPEZE_LOG_FORMAT"`

	// The address of the HTTP API that commands use instead of `DATABASE_URL`.
	Server string `envconfig:"TRAPEZE_SERVER"`
	// The token that commands send to the server in `TRAPEZE_SERVER`.
	Token string `envconfig:"TRAPEZE_TOKEN"`

	// If `true`, the demo kinds are registered.
	DemoHandlers bool `envconfig:"TRAPEZE_DEMO_HANDLERS"`
	// The URL to which the demo kinds report.
	LedgerURL string `envconfig:"TRAPEZE_LEDGER_URL"`
}

// all contains every variable. The function defaults returns it with the default of each variable.
type all struct {
	Runner
	API
	Program
}

func defaults() all {
	return all{
		Runner: Runner{
			Schema: "trapeze", Runner: true, ClaimAhead: true, Slots: 4 * runtime.GOMAXPROCS(0), PollInterval: 10 * time.Second, Lease: 8 * time.Second, Heartbeat: 2 * time.Second,
			ShutdownGrace: 20 * time.Second, MinSchedule: time.Second, MaxAttempts: 5, MaxCrashes: 3,
			KeepSucceeded: 48 * time.Hour, KeepFailed: 168 * time.Hour, KeepCancelled: 48 * time.Hour, KeepEvents: 168 * time.Hour,
		},
		API:     API{Addr: "127.0.0.1:8080", Auth: "token", StreamsPerPrincipal: 1000},
		Program: Program{Log: "info", LogFormat: "text"},
	}
}
