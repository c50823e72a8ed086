//go:build !long

package api_test

// races is how often two commands meet.
const races = 60
