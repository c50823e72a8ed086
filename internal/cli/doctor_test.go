package cli

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"github.com/matryer/is"
	"github.com/spf13/cobra"

	"github.com/trapeze-run/trapeze/internal/doctor"
)

// The findings are written by a test in internal/doctor.
func TestFindingsAreReadByPeople(t *testing.T) {
	is := is.New(t)
	text, err := os.ReadFile(filepath.Join("..", "doctor", "testdata", "findings.json"))
	is.NoErr(err)
	var findings []doctor.Finding
	is.NoErr(json.Unmarshal(text, &findings))
	var printed bytes.Buffer
	c := &cobra.Command{}
	c.SetOut(&printed)
	is.NoErr(printFindings(c, findings))
	want, err := os.ReadFile(filepath.Join("testdata", "doctor.txt"))
	is.NoErr(err)
	is.Equal(printed.String(), string(want))
}

func TestConnectionAndAPIFindingsOrder(t *testing.T) {
	is := is.New(t)
	var findings []doctor.Finding
	for _, check := range []string{"server", "notify", "schema", "durability", "connections", "clock", "horizon", "history", "tables", "new"} {
		findings = append(findings, doctor.Finding{Check: check})
	}
	var order []string
	for _, f := range inOrder(findings) {
		order = append(order, f.Check)
	}
	is.Equal(order, []string{"server", "durability", "connections", "clock", "notify", "horizon", "schema", "history", "tables", "new"})
}
