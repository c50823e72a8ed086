// Package cursor makes what a list gives out to say where its next page begins: the API's lists and the dashboard's have the same.
//
// What stands in a cursor is for the program alone, and may be another thing in the next release. It carries no right, so it is not
// signed; the sum is there to tell what was made up or cut off from what we gave out.
package cursor

import (
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"errors"
)

// Its form: version 1 byte · sum 4 bytes · where the page begins, as the store says it.
const version = 1

// ErrForeign says that a cursor was not given out for this list.
var ErrForeign = errors.New("want the next_cursor of the previous page of the same list")

// Sealed makes the cursor of a list out of the store's. Without one it is empty: there is no next page.
func Sealed(list, cursor string) string {
	if cursor == "" {
		return ""
	}
	return base64.RawURLEncoding.EncodeToString(append(head(list, cursor), cursor...))
}

// Opened reads what [Sealed] made for the same list, or returns [ErrForeign]. An empty cursor is the first page.
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
	if subtle.ConstantTimeCompare([]byte(Sealed(list, cursor)), []byte(text)) != 1 { // the decoder passes over line ends
		return "", ErrForeign
	}
	return cursor, nil
}

func head(list, cursor string) []byte {
	sum := sha256.Sum256([]byte("trapeze " + list + " " + cursor))
	return append([]byte{version}, sum[:4]...)
}
