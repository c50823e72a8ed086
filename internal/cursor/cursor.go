// Package cursor makes the cursors with which the API's and the dashboard's lists name their next page.
//
// The content of a cursor is private to the program, and may change in the next release. It grants no permission, so it is not
// signed. Its checksum detects cursors that are invented or truncated.
package cursor

import (
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"errors"
)

// Format: version 1 byte · sum 4 bytes · the store's cursor of the page.
const version = 1

// ErrForeign means that a cursor does not come from this list.
var ErrForeign = errors.New("want the next_cursor of the previous page of the same list")

// Sealed returns the cursor of a list for a cursor of the store. An empty one stays empty: there is no next page.
func Sealed(list, cursor string) string {
	if cursor == "" {
		return ""
	}
	return base64.RawURLEncoding.EncodeToString(append(head(list, cursor), cursor...))
}

// Opened returns the store's cursor from a cursor that [Sealed] made for the same list, or [ErrForeign]. An empty cursor is the
// first page.
func Opened(list, text string) (string, error) {
	if text == "" {
		return "", nil
	}
	const size = 1 + 4
	raw, err := base64.RawURLEncoding.Strict().DecodeString(text)
	if err != nil || len(raw) < size {
		return "", ErrForeign
	}
	cursor := string(raw[size:])
	if subtle.ConstantTimeCompare([]byte(Sealed(list, cursor)), []byte(text)) != 1 { // the decoder ignores line breaks
		return "", ErrForeign
	}
	return cursor, nil
}

func head(list, cursor string) []byte {
	sum := sha256.Sum256([]byte("trapeze " + list + " " + cursor))
	return append([]byte{version}, sum[:4]...)
}
