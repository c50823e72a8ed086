package text

import (
	"os/exec"
	"strings"
	"testing"

	"github.com/matryer/is"
)

func TestShellWordQuoting(t *testing.T) {
	for _, text := range []string{"csv_ingest", "a/b:c@v1.2+x-y", "x; touch /tmp/pwned", "$(id)", "`id`", "it's", "a b", "", "'", `\`, "-rf", "~root",
		"*", "größe", "a&b", "#x", "!!", `"`, "'; id; '"} {
		is := is.New(t)
		out, err := exec.Command("sh", "-c", "printf %s "+ShellWord(text)).CombinedOutput()
		is.NoErr(err)
		is.Equal(string(out), text)
	}
	is := is.New(t)
	is.Equal(ShellWord("csv_ingest"), "csv_ingest")                         // a plain word is not quoted
	is.True(!strings.ContainsAny(ShellWord("a\nid\x1b]0;x\a"), "\n\x1b\a")) // no control characters remain
}
