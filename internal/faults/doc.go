// Package faults holds the tests with faults: pods are killed, frozen and resumed, PostgreSQL is restarted as by a power
// failure, connections are cut, and processes die exactly between two statements. Nothing here is a mock: each pod is a
// separate process, which runs the test's own binary, and the database is PostgreSQL.
//
//	test ──▶ world: database, submissions, pods ──▶ fault ──▶ settle: nothing is left to do ──▶ check: the whole history
//
// All tests make the same check. It reads the jobs and their events afterwards: no job is lost or doubled, every move is
// legal, every fence is in order, the runs of each subject follow one another, and each exactly-once write exists once.
//
// The build tag failpoints adds deaths at every failpoint; the tag long makes the faults last longer. No program can
// import code from here.
package faults
