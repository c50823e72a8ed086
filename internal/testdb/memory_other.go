//go:build !linux

package testdb

// Dir returns nothing: there is no file system in memory that every machine of this system has.
func Dir() string { return "" }
