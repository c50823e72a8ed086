//go:build !linux

package pgtest

// memoryDir is empty: there is no file system in memory that every machine of this system has.
func memoryDir() string { return "" }
