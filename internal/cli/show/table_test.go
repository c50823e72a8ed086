package show

import (
	"errors"
	"strings"
	"testing"

	"github.com/matryer/is"
)

func TestAPsOfLongNamesFitsTheTerminal(t *testing.T) {
	is := is.New(t)
	names := strings.Fields("JOB KIND LANE SUBJECT PRI POD SINCE TRY PROGRESS")
	row := []string{"4711", "a_kind_with_a_long_name", "maintenance", "travel/2025/quarter/1", "10", "web-7f9c5d-abcde", "1h02m", "1", "30/120 (25%) rows of the second quarter"}
	total := func(widths []int) (n int) {
		for _, w := range widths {
			n += w + 2
		}
		return n - 2
	}
	is.True(total(columns(names, [][]string{row}, 0)) > 100)
	fitted := columns(names, [][]string{row}, 100)
	is.Equal(total(fitted), 100)
	is.Equal(fitted[0], 4)                       // the id is whole
	is.Equal(fitted[6], 5)                       // short columns are
	is.True(total(columns(names, nil, 20)) > 20) // heads stay readable
	is.Equal(Ink(true).word("failed"), "\x1b[31mfailed\x1b[0m")
	is.Equal(Ink(false).word("failed"), "failed")
}

func TestAnErrorIsOneLine(t *testing.T) {
	is := is.New(t)
	is.Equal(OneLine(errors.New("cannot connect:\n\ta: refused\n\tb: refused\n\ta: refused")), "cannot connect: a: refused; b: refused")
}

func TestALineSaysWhatItSeemsToSay(t *testing.T) {
	is := is.New(t)
	is.Equal(Printable("kill \u202e7 boj\u202c\u2066"), "kill ·7 boj··") // nothing turns around
	is.Equal(Printable("a\u2028b\x1b[31m"), "a·b·[31m")
	is.Equal(Printable("Žluťoučký 👩‍🚀 عربي"), "Žluťoučký 👩‍🚀 عربي") // every script is shown as it is
}
