// Package admin holds the statements by which operators, the API and the CLI change something: lanes, the queue state, roles, schedules and their
// occurrences, and jobs that are cancelled, retried, moved, approved or given another priority. Each change is one transaction with its audit entry.
// A function takes the [store.Store] that it runs on. Package runner calls them, and package calendar those of schedules.
package admin
