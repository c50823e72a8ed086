package program

import (
	"testing"

	"github.com/matryer/is"
)

func TestNumbersAreShownWithCommas(t *testing.T) {
	is := is.New(t)
	for digits, want := range map[string]string{
		"0": "0", "999": "999", "1000": "1,000", "20000": "20,000", "1234567": "1,234,567", "-1000": "-1,000", "-100": "-100",
		"4645337.308939008": "4,645,337.308939008", "0.123456": "0.123456",
	} {
		is.Equal(commas(digits), want)
	}
}
