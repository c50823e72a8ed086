package cli

import (
	"strings"
	"testing"

	"github.com/matryer/is"
)

func TestPsTableLongNames(t *testing.T) {
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
	is.Equal(fitted[0], 4)                       // the ID is not truncated
	is.Equal(fitted[6], 5)                       // short columns are not truncated either
	is.True(total(columns(names, nil, 20)) > 20) // headers stay readable even if the table does not fit
	is.Equal(Ink(true).word("failed"), "\x1b[31mfailed\x1b[0m")
	is.Equal(Ink(false).word("failed"), "failed")
}
