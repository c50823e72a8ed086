package cli

import (
	"fmt"
	"strings"

	"github.com/mattn/go-runewidth"
	"github.com/spf13/cobra"

	"github.com/trapeze-run/trapeze/internal/text"
)

// leastColumn is the minimum width of a column in a table that must fit a terminal.
const leastColumn = 6

// Table prints rows of cells below a header. Columns are as wide as their contents, but shrink if necessary to fit the width of a terminal.
// Table modifies rows: it removes control characters, and replaces empty cells with "-".
func Table(c *cobra.Command, head string, rows [][]string) error {
	names := strings.Fields(head)
	for _, cells := range rows {
		for i, cell := range cells {
			if cells[i] = text.Printable(cell); cells[i] == "" {
				cells[i] = "-"
			}
		}
	}
	out := c.OutOrStdout()
	widths := columns(names, rows, widthOf(out))
	var b strings.Builder
	colours := InkFor(out)
	line(&b, names, widths, func(cell string) string { return colours.Colour(faint, cell) })
	for _, cells := range rows {
		line(&b, cells, widths, colours.word)
	}
	_, err := fmt.Fprint(out, b.String())
	return err
}

// columns returns the width of each column. While the table is wider than the terminal, it shrinks the widest column, but none below
// leastColumn. A terminal width of 0 means no limit. The first column never shrinks, because it identifies the row.
func columns(names []string, rows [][]string, terminal int) []int {
	widths := make([]int, len(names))
	total := 2 * (len(names) - 1)
	for i, name := range names {
		widths[i] = runewidth.StringWidth(name)
		for _, cells := range rows {
			widths[i] = max(widths[i], runewidth.StringWidth(cells[i]))
		}
		total += widths[i]
	}
	for terminal > 0 && total > terminal && len(names) > 1 {
		widest := 1
		for i := range widths[1:] {
			if widths[i+1] >= widths[widest] {
				widest = i + 1
			}
		}
		if widths[widest] <= leastColumn {
			break
		}
		widths[widest]--
		total--
	}
	return widths
}

// line writes one line of a table. It does not pad the last column.
func line(b *strings.Builder, cells []string, widths []int, colour func(string) string) {
	for i, cell := range cells {
		cell = runewidth.Truncate(cell, widths[i], "…")
		gap := widths[i] - runewidth.StringWidth(cell) + 2
		if i == len(cells)-1 {
			gap = 0
		}
		b.WriteString(colour(cell))
		b.WriteString(strings.Repeat(" ", gap))
	}
	b.WriteString("\n")
}
