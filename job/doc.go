// Package job defines the vocabulary of Trapeze: jobs with their states, reasons and errors, and the objects that operators see and change,
// such as pipelines, lanes, pods, schedules and retention. It also defines the rules: which state transitions are allowed, and which
// settings and names are valid. It does no I/O, starts no goroutines and imports only the standard library. Every other package uses it.
// Most programs use it through the aliases in package runner.
package job
