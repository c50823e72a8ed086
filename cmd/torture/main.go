// Command torture runs a small fleet, injects faults determined by a seed, and checks the recorded history. See package command, or run the
// program with -help.
package main

import (
	"os"

	"github.com/trapeze-run/trapeze/internal/torture/command"
)

func main() { os.Exit(command.Run(os.Args[1:], os.Stdout, os.Stderr)) }
