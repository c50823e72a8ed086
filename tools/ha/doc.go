// Package ha contains the failover tests. They use real processes: a PostgreSQL cluster, Patroni with etcd, HAProxy, pgbouncer, and three
// pods of the real program under constant load. Run them with `make ha`. They need the build tag ha and the Debian packages patroni,
// etcd-server, haproxy and pgbouncer. Everything listens on loopback addresses.
//
//	clients ─ HTTP ─▶ 3 pods ─▶ (HAProxy | pgbouncer | proxy) ─▶ PostgreSQL servers ◀─ a fault
//	                    └─ every start of a handler ─▶ ledger
//
// A scenario starts the load and causes one fault after another. For each fault, it measures how long submissions and handlers remained
// interrupted after the new primary accepted writes. It then stops the load and checks that no job was lost or duplicated, no ID was used
// twice, and no live pod was declared dead. For each fault, it prints a line with PASS or FAIL, and TestMain repeats the lines as a table
// at the end.
//
// Other packages cannot import this one.
package ha
