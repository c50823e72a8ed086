package main

import (
	"os"
	"path/filepath"
	"runtime"
)

// defaultDataDir is where the embedded server's data is kept: for root a place that the server's own user can reach.
func defaultDataDir() string {
	home, err := os.UserHomeDir()
	switch {
	case os.Geteuid() == 0 || err != nil:
		return "/var/lib/trapeze"
	case os.Getenv("XDG_DATA_HOME") != "":
		return filepath.Join(os.Getenv("XDG_DATA_HOME"), "trapeze")
	case runtime.GOOS == "darwin":
		return filepath.Join(home, "Library", "Application Support", "trapeze")
	}
	return filepath.Join(home, ".local", "share", "trapeze")
}
