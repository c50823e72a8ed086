// Package job is the vocabulary of Trapeze: what a job is, where it may stand and move, and the errors that say what
// should happen next. It knows nothing of databases or goroutines and imports the standard library alone.
package job
