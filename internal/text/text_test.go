package text

import (
	"errors"
	"testing"

	"github.com/matryer/is"
)

func TestAnErrorIsOneLine(t *testing.T) {
	is := is.New(t)
	is.Equal(OneLine(errors.New("cannot connect:\n\ta: refused\n\tb: refused\n\ta: refused")), "cannot connect: a: refused; b: refused")
}

func TestPrintableText(t *testing.T) {
	is := is.New(t)
	is.Equal(Printable("kill \u202e7 boj\u202c\u2066"), "kill ·7 boj··") // no character changes the writing direction
	is.Equal(Printable("a\u2028b\x1b[31m"), "a·b·[31m")
	is.Equal(Printable("Žluťoučký 👩‍🚀 عربي"), "Žluťoučký 👩‍🚀 عربي") // text in other scripts is not changed
}
