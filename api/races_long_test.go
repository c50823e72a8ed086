//go:build long

package api_test

const races = 3000
