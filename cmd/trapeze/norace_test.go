//go:build !race

package main

// slow is the factor by which commands are slower than usual and need more memory. See race_test.go.
const slow = 1
