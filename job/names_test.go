package job

import (
	"errors"
	"strings"
	"testing"

	"github.com/matryer/is"
)

func TestKindAlphabet(t *testing.T) {
	is := is.New(t)
	for _, good := range []string{"k", "csv_ingest", "demo.noop", "billing/charge:v2", "a@b+c-d", "_x", "9", strings.Repeat("k", 100)} {
		is.NoErr(ValidateKind(good))
	}
	for _, bad := range []string{"", "-rf", ".x", "a b", "$(id)", "a;b", "a'b", "größe", "a\nb", "a\x00", "\xff", "<b>", strings.Repeat("k", 101)} {
		is.True(errors.Is(ValidateKind(bad), ErrInvalid))
	}
	for name, want := range map[string]string{"web-1": "web-1", "a b": "a-b", "$(id)": "_-id-", "Zürich": "Z-rich", "": "", "-x": "_-x", strings.Repeat("é x", 90): DisplayName(strings.Repeat("é x", 90))} {
		got := DisplayName(name)
		is.Equal(got, want)
		is.True(len(got) <= 100)
		is.Equal(DisplayName(got), got)
	}
}
