package ui

import (
	"net/url"
	"regexp"
	"slices"
	"strings"
)

// pageAddress matches the URL of a page, relative to the dashboard's root. It allows no scheme, no host, no leading slash or dot in a
// segment, and no escapes. Every match therefore leads below the root.
var pageAddress = regexp.MustCompile(`^[a-z]+(/[A-Za-z0-9][A-Za-z0-9_.:-]*)*$`)

// maxNext limits the length of the URL to which a login returns, in bytes.
const maxNext = 2000

// Onward returns the URL, relative to the dashboard's root, of the page that was requested before a login. It returns an empty string,
// the dashboard's first page, if next is not a page of the dashboard.
func Onward(next string) string {
	path, query, _ := strings.Cut(next, "?")
	if len(next) > maxNext || !pageAddress.MatchString(path) || !hasPage(path) {
		return ""
	}
	asked, err := url.ParseQuery(query)
	if err != nil || len(asked) == 0 {
		return path
	}
	return path + "?" + asked.Encode()
}

// hasPage reports whether a page exists for a path.
func hasPage(path string) bool {
	first, _, _ := strings.Cut(path, "/")
	return slices.ContainsFunc(pages, func(v view) bool { return v.here == first })
}
