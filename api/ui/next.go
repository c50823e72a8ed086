package ui

import (
	"net/url"
	"regexp"
	"slices"
	"strings"
)

// pageAddress matches the URL of a page, relative to the dashboard's root. It allows no scheme, host, leading slash or escape, and no
// segment that starts with a dot. Every match therefore stays below the root.
var pageAddress = regexp.MustCompile(`^[a-z]+(/[A-Za-z0-9][A-Za-z0-9_.:-]*)*$`)

// maxNext is the maximum length of a URL that a login redirects to, in bytes.
const maxNext = 2000

// Onward returns the URL to redirect to after a login, relative to the dashboard's root. If next is not a dashboard page, it returns an
// empty string, which means the first page.
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
	segments := strings.Split(path, "/")
	return slices.ContainsFunc(routes, func(v Route) bool {
		return slices.EqualFunc(segments, strings.Split(v.Path[1:], "/"), func(segment, pattern string) bool {
			return segment == pattern || pattern[0] == '{' && pattern != "{$}"
		})
	})
}
