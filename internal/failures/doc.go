// Package failures groups failed jobs by kind and error. Errors that differ only in numbers, ids, hexadecimal values and quoted text belong
// to the same group. The package reads no database: internal/store/view reads the jobs.
package failures
