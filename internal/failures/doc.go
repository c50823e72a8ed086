// Package failures groups failed jobs by kind and error. Errors that differ only in numbers, ids, hexadecimal values or quoted text belong
// to the same group. The package does not access the database. Package internal/store/view reads the jobs.
package failures
