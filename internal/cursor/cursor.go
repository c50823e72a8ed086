// Package cursor encodes the cursors with which lists in the API and the dashboard refer to their next page.
//
// Cursors are opaque: their content may change in any release. Cursors grant no permissions, so they are not signed. A checksum detects
// cursors that are made up or truncated.
package cursor

import (
	"crypto/sha256"
	"encoding/base64"
	"errors"
)

// The format of a cursor is a version (1 byte), a checksum (4 bytes), and the store's cursor for the page.
const version = 1

// ErrForeign means that a cursor was not issued for this list.
var ErrForeign = errors.New("want the next_cursor of the previous page of the same list")

// Encode encodes a store cursor for a list. An empty cursor, which marks the last page, stays empty.
func Encode(list, cursor string) string {
	if cursor == "" {
		return ""
	}
	return base64.RawURLEncoding.EncodeToString(append(head(list, cursor), cursor...))
}

// Decode decodes a cursor from [Encode] for the same list, or returns [ErrForeign]. An empty cursor means the first page.
func Decode(list, text string) (string, error) {
	if text == "" {
		return "", nil
	}
	const size = 1 + 4
	raw, err := base64.RawURLEncoding.Strict().DecodeString(text)
	if err != nil || len(raw) < size {
		return "", ErrForeign
	}
	cursor := string(raw[size:])
	if Encode(list, cursor) != text { // rejects line breaks, which the decoder ignores
		return "", ErrForeign
	}
	return cursor, nil
}

func head(list, cursor string) []byte {
	sum := sha256.Sum256([]byte("trapeze " + list + " " + cursor))
	return append([]byte{version}, sum[:4]...)
}
