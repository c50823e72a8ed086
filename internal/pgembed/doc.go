// Package pgembed runs a real PostgreSQL server for the lifetime of one process: for the demo, for serving without a DATABASE_URL, and for
// tests. It is not meant for production, because there are no backups and no upgrades between major versions. Connecting requires the
// generated password of the superuser, which only the owner can read.
//
// It uses the PostgreSQL binaries that are installed on the machine, or downloads them once if there are none. Each server has one home
// directory:
//
//	home/               the owner's (root's, if this process runs as root)
//	├── owner.lock      flock held by the living owner, with its PID inside; if no process holds it, the owner is dead
//	├── pgpass          the password, in the format of libpq's password file, mode 0600
//	├── postgres.log    the output of the server
//	├── s/              Unix socket; left out if the path would be too long for a socket address
//	└── pgdata/         PostgreSQL's data directory; belongs to the unprivileged user if this process runs as root
//
// # When the owner is killed
//
// A server must not outlive its owner, but an owner that is killed cannot stop its server. There are three safety nets. The kernel sends
// the server SIGINT when its owner dies (Linux only). The next [Start] on the same home stops a server that is still running there. Every
// [Start] searches for temporary homes without a living owner, stops their servers and removes the homes. Before stopping a process, Start
// verifies that it is a PostgreSQL server of that directory, so that an outdated PID never leads to another process being stopped.
package pgembed
