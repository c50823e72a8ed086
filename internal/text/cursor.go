package text

import (
	"crypto/sha256"
	"encoding/base64"
	"errors"
)

// Cursors refer to the next page of a list in the API and the dashboard. They are opaque: their content may change in any release. They
// grant no permissions, so they are not signed. A checksum detects cursors that are made up or truncated.

// The format of a cursor is a version (1 byte), a checksum (4 bytes), and the store's cursor for the page.
const cursorVersion = 1

// ErrForeignCursor means that a cursor was not issued for this list.
var ErrForeignCursor = errors.New("want the next_cursor of the previous page of the same list")

// EncodeCursor encodes a store cursor for a list. An empty cursor, which marks the last page, stays empty.
func EncodeCursor(list, cursor string) string {
	if cursor == "" {
		return ""
	}
	return base64.RawURLEncoding.EncodeToString(append(cursorHead(list, cursor), cursor...))
}

// DecodeCursor decodes a cursor from [EncodeCursor] for the same list, or returns [ErrForeignCursor]. An empty cursor means the first page.
func DecodeCursor(list, text string) (string, error) {
	if text == "" {
		return "", nil
	}
	const size = 1 + 4
	raw, err := base64.RawURLEncoding.Strict().DecodeString(text)
	if err != nil || len(raw) < size {
		return "", ErrForeignCursor
	}
	cursor := string(raw[size:])
	if EncodeCursor(list, cursor) != text { // rejects line breaks, which the decoder ignores
		return "", ErrForeignCursor
	}
	return cursor, nil
}

func cursorHead(list, cursor string) []byte {
	sum := sha256.Sum256([]byte("trapeze " + list + " " + cursor))
	return append([]byte{cursorVersion}, sum[:4]...)
}
