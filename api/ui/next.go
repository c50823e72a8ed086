package ui

import (
	"net/url"
	"regexp"
	"slices"
	"strings"
)

// pageAddress is the address of a page, from the dashboard's root on. It holds no scheme, no host, no slash or dots at the beginning of a
// part, nothing escaped and nothing that a browser would read as one of these: whatever matches leads below the root.
var pageAddress = regexp.MustCompile(`^[a-z]+(/[A-Za-z0-9][A-Za-z0-9_.:-]*)*$`)

// maxNext bounds the address that a login leads back to, in bytes.
const maxNext = 2000

// Onward is the address, relative to the dashboard's root, of the page that was asked for before a login. What is not the address of a
// page of the dashboard leads nowhere but to its first page: the answer is empty.
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

// hasPage reports whether a page's address begins so.
func hasPage(path string) bool {
	first, _, _ := strings.Cut(path, "/")
	return slices.ContainsFunc(pages, func(v view) bool { return v.here == first })
}
