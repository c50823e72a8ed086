//go:build !long

package api_test

// races is the number of times that two commands run concurrently.
const races = 60
