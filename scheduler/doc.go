// Package scheduler decides when schedules fire, and submits their jobs.
//
// A [Calendar] represents an expression such as "30 2 * * *" in a time zone. It computes when a schedule fires, without reading a clock. A
// [Scheduler] runs functions at intervals, using gocron, and at given times. Neither knows anything about jobs.
//
// A [Submitter] turns due schedules into jobs. The database decides when a schedule is due: the submitter learns the time from a
// heartbeat's response ([Submitter.Apply]) and waits until then. It locks the due schedules and decides which of their occurrences submit jobs, according to
// their policies for missed occurrences, overlaps and unique keys. It writes the occurrences, the jobs and the next due times in one commit,
// so that each occurrence is processed only once, no matter how many pods there are. Package pod runs the submitter and prepares its jobs.
//
// Host programs do not import this package: they declare schedules with package runner.
package scheduler
