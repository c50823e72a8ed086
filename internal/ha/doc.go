// Package ha holds the tests of failover, with real processes: PostgreSQL servers of a cluster, Patroni with etcd, HAProxy,
// pgbouncer, and three pods of the real program under constant load. Run them with `make ha`; they need the build tag ha, and the
// Debian packages patroni, etcd-server, haproxy and pgbouncer. Everything listens on loopback addresses.
//
//	clients ─ HTTP ─▶ 3 pods ─▶ (HAProxy | pgbouncer | proxy) ─▶ PostgreSQL servers ◀─ a fault
//	                    └─ every start of a handler ─▶ ledger
//
// A scenario begins the load, does one fault after the other, measures for each how long submissions and handlers were absent
// after the new primary accepted writes, ends the load, and checks all jobs: none lost, none doubled, no id used twice, no living
// pod declared dead. Each fault prints one line, PASS or FAIL; TestMain repeats the lines as a table at the end.
//
// It holds no code that a program could link.
package ha
