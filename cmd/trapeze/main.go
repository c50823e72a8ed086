// Command trapeze serves, watches and steers background jobs on PostgreSQL. `trapeze --help` teaches it.
//
// It is the wiring and nothing else: what it can do, the packages runner and api can do in any other program.
package main

import (
	"context"
	"os"
	_ "time/tzdata" // schedules name time zones, and a container of this program alone has none
)

// release is set by the linker: -ldflags "-X main.release=v1.2.3".
var release string

func main() { os.Exit(run(context.Background(), os.Args[1:])) }
