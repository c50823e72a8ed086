//go:build !race

package main

// slow is how many times longer a command takes than usual: see race_test.go.
const slow = 1
