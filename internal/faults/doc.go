// Package faults holds the tests in which something dies: pods are killed, frozen and woken, PostgreSQL is restarted as by
// a power failure, connections are cut, and death is placed exactly between two statements. Nothing here is a double: each
// pod is a process of its own, the test's own binary started again, and the database is PostgreSQL.
//
//	test ──▶ world: database, submissions, pods ──▶ fault ──▶ settle: nothing is left to do ──▶ check: the whole history
//
// The check is the same for all. It reads the jobs and their events afterwards: nothing lost, nothing doubled, every move
// legal, every fence in order, each subject's runs one after the other, each exactly-once write there once.
//
// The build tag failpoints adds death at every failpoint, the tag long makes the faults last longer. It holds no code that
// a program could link.
package faults
