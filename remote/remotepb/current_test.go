package remotepb_test

import (
	"crypto/sha256"
	"encoding/hex"
	"flag"
	"os"
	"strings"
	"testing"

	"github.com/matryer/is"
)

var update = flag.Bool("update", false, "note from which protocol the code was generated (make proto)")

func TestGeneratedProtocolCode(t *testing.T) {
	is := is.New(t)
	source, err := os.ReadFile("../trapeze/v1/workers.proto")
	is.NoErr(err)
	sum := sha256.Sum256(source)
	if *update {
		is.NoErr(os.WriteFile("workers.proto.sha256", []byte(hex.EncodeToString(sum[:])+"\n"), 0o644))
	}
	noted, err := os.ReadFile("workers.proto.sha256")
	is.NoErr(err)
	is.Equal(strings.TrimSpace(string(noted)), hex.EncodeToString(sum[:])) // if this fails, the protocol has changed: run make proto
}
