package view

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/trapeze-run/trapeze/job"
)

// Search is a parsed search, such as `refused args.user.id=7`. A job matches if Text occurs in its kind, subject, submitter or error, if
// Error occurs in its error, and if its args have the given values. An unquoted number that is the id of a job matches only that job. Only
// args are case-sensitive. The zero value matches every job.
type Search struct {
	Text  string
	Error string
	Args  []ArgIs

	source string
	id     int64 // the job id, if the text is a number; otherwise 0
	errors bool  // Text is also searched in errors; see [Search.For]
}

// ArgIs requires a value at a path in the args. The value is a string, or another scalar in JSON. Numbers in the path are array indexes.
type ArgIs struct{ Path, Value string }

// These limits apply to a search.
const (
	maxSearch     = 500
	maxSearchArgs = 5
)

// ParseSearch parses a search. Words of the form args.path=value and error=text are conditions; the remaining words form the text. A value
// that contains spaces must be quoted.
func ParseSearch(text string) (s Search, err error) {
	s.source = text
	if len(text) > maxSearch {
		return s, fmt.Errorf("search of %d bytes: want at most %d", len(text), maxSearch)
	}
	var words []string
	for rest := strings.TrimSpace(text); rest != ""; rest = strings.TrimLeft(rest, " ") {
		var word string
		word, rest = nextWord(rest)
		name, value, is := strings.Cut(word, "=")
		value = unquote(value)
		path, ofArgs := strings.CutPrefix(name, "args.")
		switch {
		case ofArgs && (!is || path == ""):
			return s, fmt.Errorf("search %q: want args.path=value, such as args.user.id=7", word)
		case ofArgs:
			s.Args = append(s.Args, ArgIs{path, value})
		case is && name == "error":
			if s.Error != "" || value == "" {
				return s, fmt.Errorf("search %q: want error=text, once", word)
			}
			s.Error = value
		default:
			words = append(words, word)
		}
	}
	if len(s.Args) > maxSearchArgs {
		return s, fmt.Errorf("search with %d args: want at most %d", len(s.Args), maxSearchArgs)
	}
	s.Text = strings.Join(words, " ")
	if id, err := strconv.ParseInt(strings.TrimPrefix(s.Text, "#"), 10, 64); err == nil && id > 0 && !s.Secret() {
		s.id = id
	}
	s.Text = unquote(s.Text)
	return s, nil
}

// nextWord splits off the first word of a text. Spaces inside double quotes are part of the word.
func nextWord(text string) (word, rest string) {
	quoted := false
	for i, r := range text {
		switch {
		case r == '"':
			quoted = !quoted
		case r == ' ' && !quoted:
			return text[:i], text[i:]
		}
	}
	return text, ""
}

// unquote removes the double quotes around a value.
func unquote(value string) string {
	if len(value) >= 2 && value[0] == '"' && value[len(value)-1] == '"' {
		return value[1 : len(value)-1]
	}
	return value
}

// String returns the search in its original form.
func (s Search) String() string { return s.source }

// Any reports whether the search has any conditions.
func (s Search) Any() bool { return s.Text != "" || s.Error != "" || len(s.Args) > 0 }

// Secret reports whether the search has conditions on args or errors, which may contain secrets.
func (s Search) Secret() bool { return s.Error != "" || len(s.Args) > 0 }

// ErrSearchForbidden means that the caller may not search args or errors.
var ErrSearchForbidden = errors.New("searching args and errors needs permission jobs:args")

// For restricts the search and the filter to the fields and jobs that a caller may search. allowed reports whether the caller has the
// permission jobs:args. If argsOf is not empty, the permission covers only that submitter's jobs. A search for args or errors never matches
// other jobs, so the result reveals nothing about them. Text is searched in errors only if the permission covers all jobs that the filter
// selects.
func (s Search) For(f job.Filter, allowed bool, argsOf string) (Search, job.Filter, error) {
	switch {
	case s.Secret() && !allowed:
		return s, f, ErrSearchForbidden
	case s.Secret() && argsOf != "":
		f.Owner = argsOf
	}
	s.errors = allowed && (argsOf == "" || f.Owner == argsOf)
	return s, f, nil
}

// states returns the states that matching jobs can have (see [job.Filter.Possible]). Args are searched only in unfinished and failed jobs,
// and errors only in failed and cancelled ones, because even a long history contains few such jobs.
func (s Search) states(f job.Filter) ([]job.State, error) {
	of, most := f.Possible(), []job.State(nil)
	switch {
	case s.Error != "":
		most = []job.State{job.Failed, job.Cancelled}
	case len(s.Args) > 0:
		most = []job.State{job.AwaitingApproval, job.Pending, job.Running, job.Waiting, job.Failed}
	default:
		return of, nil
	}
	if len(of) == 0 {
		return most, nil
	}
	if !onlyOf(of, most...) {
		return nil, fmt.Errorf("%w: search of args and errors: want some of the states %v, not %v", job.ErrInvalid, most, of)
	}
	return of, nil
}

// arguments returns the conditions as arguments for jobsFound: patterns for the text and the error, whether errors are searched for the
// text, and the paths and values in the args.
func (s Search) arguments() []any {
	var paths, values []string
	for _, a := range s.Args {
		paths, values = append(paths, a.Path), append(values, a.Value)
	}
	return []any{pattern(s.Text), pattern(s.Error), s.errors, paths, values}
}

// pattern returns an ILIKE pattern that matches any string containing text. It returns nil if text is empty.
func pattern(text string) *string {
	if text == "" {
		return nil
	}
	text = "%" + strings.NewReplacer(`\`, `\\`, `%`, `\%`, `_`, `\_`).Replace(text) + "%"
	return &text
}

// onlyID reports whether the search is explicitly for a job id, such as #4711.
func (s Search) onlyID() bool { return s.id != 0 && strings.HasPrefix(s.Text, "#") }
