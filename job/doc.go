// Package job is the vocabulary of Trapeze: jobs with their states, reasons and errors, and the things that operators see and change, such as
// pipelines, lanes, pods, schedules and retention. It holds the rules among these words: which state may follow which, and which settings and names
// are valid. It does no I/O, starts no goroutine and imports the standard library alone. Every package uses it; programs meet most of it by the
// aliases in package runner.
package job
