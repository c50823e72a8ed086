package cli

import (
	"encoding/json"
	"fmt"
	"iter"
	"regexp"
	"strings"

	"github.com/spf13/cobra"

	"github.com/trapeze-run/trapeze/internal/text"
	"github.com/trapeze-run/trapeze/job"
)

// JSON prints a value as JSON on one line.
func JSON(c *cobra.Command, v any) error {
	encoder := json.NewEncoder(c.OutOrStdout())
	encoder.SetEscapeHTML(false)
	return encoder.Encode(v)
}

// Progress formats the progress that a job reported.
func Progress(p *job.Progress) string {
	if p == nil {
		return ""
	}
	var parts []string
	switch {
	case p.Done != nil && p.Total != nil && *p.Total > 0:
		parts = append(parts, fmt.Sprintf("%d/%d (%d%%)", *p.Done, *p.Total, *p.Done*100 / *p.Total))
	case p.Done != nil:
		parts = append(parts, fmt.Sprint(*p.Done))
	}
	if p.Message != nil {
		parts = append(parts, text.Short(*p.Message, 60))
	}
	return strings.Join(parts, " ")
}

// Text returns the value of a pointer, or an empty string for nil.
func Text[T ~string](p *T) string {
	if p == nil {
		return ""
	}
	return string(*p)
}

// WantsJSON reports whether the --json flag is set.
func WantsJSON(c *cobra.Command) bool {
	json, _ := c.Flags().GetBool("json")
	return json
}

// mostLines limits the number of lines that [Fact] prints, because a stack trace may have hundreds.
const mostLines = 40

// Fact prints a name and a value, wrapped at 100 columns. It prints nothing if the value is empty.
func Fact(b *strings.Builder, colours Ink, name, value string) {
	const indent = 15
	if value == "" || value == "null" {
		return
	}
	lines := strings.Split(strings.TrimRight(value, "\n"), "\n")
	if more := len(lines) - mostLines; more > 0 {
		lines = append(lines[:mostLines], fmt.Sprintf("… %d more lines: --json has them", more))
	}
	fmt.Fprintf(b, "%s", colours.Colour(faint, fmt.Sprintf("%-*s", indent, name)))
	for i, one := range lines {
		one = strings.TrimRight(one, " \t\r")
		if i > 0 && one != "" {
			fmt.Fprintf(b, "%*s", indent, "")
		}
		b.WriteString(colours.word(Wrap(text.Printable(strings.ReplaceAll(one, "\t", "  ")), 100-indent, strings.Repeat(" ", indent))) + "\n")
	}
}

// List prints rows. With --json, it prints one object per line as rows arrive; otherwise, it prints a table with a header.
func List[T any](c *cobra.Command, head string, rows iter.Seq2[T, error], cells func(T) []string) error {
	var table [][]string
	for row, err := range rows {
		if err == nil && WantsJSON(c) {
			err = JSON(c, row)
		}
		if err != nil {
			return err
		}
		table = append(table, cells(row))
	}
	if WantsJSON(c) {
		return nil
	}
	return Table(c, head, table)
}

// Rows returns the rows of a list as a sequence, for [List].
func Rows[T any](list []T) iter.Seq2[T, error] {
	return func(yield func(T, error) bool) {
		for _, one := range list {
			if !yield(one, nil) {
				return
			}
		}
	}
}

// Done prints a command's result, as an object with --json or else as a line.
func Done(c *cobra.Command, v any, format string, args ...any) error {
	if WantsJSON(c) {
		return JSON(c, v)
	}
	_, err := fmt.Fprintln(c.OutOrStdout(), text.Printable(Named(c, fmt.Sprintf(format, args...))))
	return err
}

// commandName matches a command in a text.
var commandName = regexp.MustCompile(`(?m)(^|[ (;|])trapeze [a-z]+`)

// Named replaces trapeze with the program's name in the commands that occur in text.
func Named(c *cobra.Command, text string) string {
	root := c.Root()
	if root.Name() == "trapeze" {
		return text
	}
	return commandName.ReplaceAllStringFunc(text, func(found string) string {
		before, command, _ := strings.Cut(found, "trapeze ")
		if to, _, err := root.Find([]string{command}); err != nil || to == root {
			return found // such as the schema trapeze
		}
		return before + root.Name() + " " + command
	})
}
