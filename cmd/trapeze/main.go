// Command trapeze serves, monitors and controls background jobs on PostgreSQL. See `trapeze --help`.
//
// It combines the command line of package cmd/app with the worked example, the demo and the demo kinds. Other programs can do the same with
// the packages cmd/app, runner and api.
package main

import (
	"context"
	"os"

	"github.com/trapeze-run/trapeze/cmd/app"
	"github.com/trapeze-run/trapeze/internal/cli/program"
)

// release is set by the linker with -ldflags "-X main.release=v1.2.3".
var release string

func main() { os.Exit(app.Run(context.Background(), program.Command(release), os.Args[1:])) }
