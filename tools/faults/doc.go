// Package faults contains the fault tests. They kill, freeze and resume pods, crash and restart PostgreSQL as a power failure would, cut
// connections, and kill processes exactly between two statements. Nothing is mocked: each pod is a separate process that runs the test
// binary, and the database is PostgreSQL.
//
//	test ──▶ world: database, submissions, pods ──▶ fault ──▶ settle: nothing is left to do ──▶ check: the whole history
//
// All tests end with the same check, which reads the jobs and their events and verifies that no job is lost or duplicated, every transition
// is valid, all fences are in order, the runs of each subject do not overlap, and each exactly-once write exists exactly once.
//
// The build tag failpoints adds crashes at every failpoint, and the build tag long makes the faults last longer. Other packages cannot
// import this one.
package faults
