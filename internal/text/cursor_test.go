package text_test

import (
	"errors"
	"testing"

	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/internal/text"
)

func TestCursorOfOtherList(t *testing.T) {
	is := is.New(t)
	given := text.EncodeCursor("jobs", "1700000000.7")
	at, err := text.DecodeCursor("jobs", given)
	is.NoErr(err)
	is.Equal(at, "1700000000.7")
	is.Equal(text.EncodeCursor("jobs", ""), "") // no next page
	at, err = text.DecodeCursor("jobs", "")
	is.NoErr(err)
	is.Equal(at, "") // the first page
	for _, foreign := range []string{"1700000000.7", given[1:], given[:len(given)-2], given + "AA", text.EncodeCursor("pipelines", "1700000000.7"), "AQ"} {
		_, err := text.DecodeCursor("jobs", foreign)
		is.True(errors.Is(err, text.ErrForeignCursor))
	}
}
