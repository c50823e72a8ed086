//go:build race

package main

// slow is how many times longer a command takes than usual: every process of a test has the race detector.
const slow = 4
