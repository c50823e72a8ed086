//go:build !linux

package pgembed

// MemoryDir returns an empty string, because this system has no in-memory file system that is always available.
func MemoryDir() string { return "" }

// UseMemoryForTemporaryFiles does nothing.
func UseMemoryForTemporaryFiles() error { return nil }
