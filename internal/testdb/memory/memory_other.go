//go:build !linux

// Package memory finds a folder in memory for the files of tests.
package memory

// Dir returns an empty string, because this system has no in-memory file system that is always available.
func Dir() string { return "" }

// UseForTemporaryFiles does nothing.
func UseForTemporaryFiles() error { return nil }
