//go:build long

package pgembed

import (
	"os"
	"strings"
	"testing"

	"github.com/matryer/is"
)

func TestPasswordFileReadableByOthers(t *testing.T) {
	is := is.New(t)
	dir := openDir(t)
	first := start(t, Options{DataDir: dir})
	is.NoErr(first.Stop())
	is.NoErr(os.Chmod(first.home.passwordFile(), 0o644))
	_, err := Start(t.Context(), Options{DataDir: dir})
	is.True(err != nil && strings.Contains(err.Error(), "chmod 0600")) // the error states the remedy
}
