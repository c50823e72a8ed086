// Package pgembed runs a real PostgreSQL server for the lifetime of one process: for the demo, for serving without a DATABASE_URL, and for
// tests. It is not meant for production, because it offers neither backups nor upgrades between major versions. Connections require the
// superuser's generated password, which only the owner can read.
//
// It uses the PostgreSQL binaries installed on the machine, or downloads them once if there are none. Each server has a home directory:
//
//	home/               the owner's (root's, if this process runs as root)
//	├── owner.lock      flock held by the living owner, with its PID inside; if no process holds it, the owner is dead
//	├── pgpass          the password, in the format of libpq's password file, mode 0600
//	├── postgres.log    the server's output
//	├── s/              Unix socket; left out if the path would be too long for a socket address
//	└── pgdata/         PostgreSQL's data directory; belongs to the unprivileged user if this process runs as root
//
// # When the owner is killed
//
// A server must not outlive its owner, but an owner that is killed cannot stop its server. There are three safety nets. The kernel sends
// the server SIGINT when its owner dies (Linux only). The next [Start] on the same home stops a server that is still running there. Every
// [Start] looks for temporary homes without a living owner, stops their servers and removes the homes. Before Start stops a process, it
// verifies that the process is a PostgreSQL server of that directory, so that it never stops an unrelated process because of an outdated
// PID.
package pgembed
