//go:build race

package e2e

// slow is the factor by which commands are slower and use more memory than usual, because all processes of a test run with the race
// detector.
const slow = 4
