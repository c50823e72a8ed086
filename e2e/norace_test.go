//go:build !race

package e2e

// slow is the factor by which commands are slower and use more memory than usual (see race_test.go).
const slow = 1
