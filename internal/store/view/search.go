package view

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/trapeze-run/trapeze/job"
)

// Search is the text of a search, such as `refused args.user.id=7`. A job matches if its id is Text, or its kind, subject, submitter or error
// contains Text, and if its error contains Error and its args have the given values. Upper and lower case are the same. The zero value
// matches every job.
type Search struct {
	Text  string
	Error string
	Args  []ArgIs

	source string
	errors bool // Text is searched in errors too, see [Search.For]
}

// ArgIs is a value in the args: text, or another scalar as its JSON. Numbers in the path are indexes of lists.
type ArgIs struct{ Path, Value string }

// Limits of a search.
const (
	maxSearch     = 500
	maxSearchArgs = 5
)

// ParseSearch parses a search. Words of the form args.path=value and error=text are conditions; the others together are the text. A value
// with spaces is quoted.
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
	s.Text = unquote(strings.Join(words, " "))
	return s, nil
}

// nextWord splits text after its first word. Spaces within double quotes belong to the word.
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

// String returns the search as it was written.
func (s Search) String() string { return s.source }

// Any reports whether the search has a condition.
func (s Search) Any() bool { return s.Text != "" || s.Error != "" || len(s.Args) > 0 }

// Secret reports whether the search asks for args or errors, which may contain secrets.
func (s Search) Secret() bool { return s.Error != "" || len(s.Args) > 0 }

// ErrSearchForbidden means that the caller may not search args and errors.
var ErrSearchForbidden = errors.New("searching args and errors needs permission jobs:args")

// For returns the search and the filter as a caller may use them. allowed reports whether the caller has the permission jobs:args, which
// covers only the jobs of argsOf if that is not empty. Jobs that the caller may not see are not matched at all, so that the result reveals
// nothing about them. Without the permission, Text is not searched in errors.
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

// states returns the states that matching jobs can have, see [job.Filter.Possible]. Args are searched in unfinished and failed jobs only,
// and errors in failed and cancelled ones, because there are few of those in a long history.
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

// arguments returns the conditions as arguments of jobsFound: patterns for the text and the error, whether the text is searched in errors,
// and the paths and values of the args.
func (s Search) arguments() []any {
	var paths, values []string
	for _, a := range s.Args {
		paths, values = append(paths, a.Path), append(values, a.Value)
	}
	return []any{pattern(s.Text), pattern(s.Error), s.errors, paths, values}
}

// pattern returns an ILIKE pattern for text that contains the given text. It returns nil for an empty text.
func pattern(text string) *string {
	if text == "" {
		return nil
	}
	text = "%" + strings.NewReplacer(`\`, `\\`, `%`, `\%`, `_`, `\_`).Replace(text) + "%"
	return &text
}

// onlyID reports whether the search is for one job, as #4711 is.
func (s Search) onlyID() bool { return strings.HasPrefix(s.Text, "#") && s.id() != 0 && !s.Secret() }

// id returns the job id that the text is, or 0.
func (s Search) id() int64 {
	id, err := strconv.ParseInt(strings.TrimPrefix(s.Text, "#"), 10, 64)
	if err != nil || id <= 0 {
		return 0
	}
	return id
}
