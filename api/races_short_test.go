//go:build !long

package api_test

// races is how many times each pair of commands runs concurrently.
const races = 60
