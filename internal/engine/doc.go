// Package engine holds the plain forms that an engine works with, without the types of a program's jobs. Package runner converts between
// them and its public types, and package remote between them and the wire.
package engine
