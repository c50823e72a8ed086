// Package pgembed runs a real PostgreSQL server for the lifetime of one process: for the demo, for serving without a
// DATABASE_URL, and for tests. It is not a way to run PostgreSQL in production: there are no backups and no upgrades
// between major versions. A connection needs the generated password of the superuser, which only the owner can read.
//
// The binaries are the machine's own if it has any; otherwise they are downloaded once. Each server has one home
// directory:
//
//	home/               the owner's (root's, when root runs us)
//	├── owner.lock      flock held by the living owner, its process id inside; no holder means the owner is dead
//	├── pgpass          the password, in the form of libpq's password file, mode 0600
//	├── postgres.log    the output of initdb and the server
//	├── s/              unix socket; left out when the path would be longer than a socket address may be
//	└── pgdata/         PostgreSQL's data directory; belongs to the unprivileged user when we are root
//
// # When the owner is killed
//
// A server must not outlive its owner, but an owner that is killed cannot stop it. There are three safety nets. The
// kernel sends the server SIGINT when its owner dies (Linux only). The next [Start] on the same home stops a server
// that is still running there. Every [Start] searches for throw-away homes without a living owner, stops their
// servers and removes them. Before a process is stopped, it is verified to be a PostgreSQL working in that very
// directory, so that an outdated process id never hits another process.
package pgembed
