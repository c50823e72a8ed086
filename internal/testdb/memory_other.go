//go:build !linux

package testdb

// Dir returns an empty string, because this system has no in-memory file system that is always available.
func Dir() string { return "" }
