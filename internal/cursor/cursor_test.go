package cursor_test

import (
	"errors"
	"testing"

	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/internal/cursor"
)

func TestACursorOpensForItsOwnListOnly(t *testing.T) {
	is := is.New(t)
	given := cursor.Encode("jobs", "1700000000.7")
	at, err := cursor.Decode("jobs", given)
	is.NoErr(err)
	is.Equal(at, "1700000000.7")
	is.Equal(cursor.Encode("jobs", ""), "") // no next page
	at, err = cursor.Decode("jobs", "")
	is.NoErr(err)
	is.Equal(at, "") // the first page
	for _, foreign := range []string{"1700000000.7", given[1:], given[:len(given)-2], given + "AA", cursor.Encode("pipelines", "1700000000.7"), "AQ"} {
		_, err := cursor.Decode("jobs", foreign)
		is.True(errors.Is(err, cursor.ErrForeign))
	}
}
