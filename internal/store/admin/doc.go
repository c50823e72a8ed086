// Package admin holds the statements that change things on behalf of operators: lanes, the queue state, pods, roles, schedules and their
// occurrences, retention, and jobs that are cancelled, retried, moved, approved or given another priority. A change by a person is one
// transaction with its audit entry, or one for each page of jobs. Changes that no person makes, such as the expiry of an approval, have no
// entry. The package hides the order of locks. Package runner and the API call it for people; calendar, pod, maintenance and engine call
// it for the rest. Each function takes the [store.Store] that it runs on.
package admin
