//go:build !linux

// Package memory finds an in-memory folder for test files.
package memory

// Dir returns an empty string, because this system has no in-memory file system that is always available.
func Dir() string { return "" }

// UseForTemporaryFiles does nothing.
func UseForTemporaryFiles() error { return nil }
