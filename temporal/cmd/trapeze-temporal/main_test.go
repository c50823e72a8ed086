package main

import (
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/matryer/is"
)

func TestDemoTotalOnBothEngines(t *testing.T) {
	is := is.New(t)
	program := filepath.Join(t.TempDir(), "trapeze-temporal")
	_, err := exec.CommandContext(t.Context(), "go", "build", "-o", program, ".").CombinedOutput()
	is.NoErr(err) // go build
	demo := exec.CommandContext(t.Context(), program, "demo", "--engine", "temporal")
	out, err := demo.CombinedOutput()
	t.Logf("%s", out)
	is.NoErr(err)
	is.Equal(strings.Count(string(out), "4645337.308939008 kg CO2e from 20000 flights of 220 airports"), 2) // the total from package handlers
	is.Equal(strings.Count(string(out), "kill -9"), 2)
	is.True(strings.Contains(string(out), "equal to the last digit on both engines"))
}
