// Command torture breaks a small fleet with the faults of a seed and checks the records. See package command, or -help.
package main

import (
	"os"

	"github.com/trapeze-run/trapeze/internal/torture/command"
)

func main() { os.Exit(command.Run(os.Args[1:], os.Stdout, os.Stderr)) }
