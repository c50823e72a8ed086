//go:build race

package main

// slow is the factor by which commands are slower than usual and need more memory, because every process of a test runs with the race
// detector.
const slow = 4
