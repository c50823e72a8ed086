package api

import (
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"errors"
)

// A cursor of a list says where its next page begins, to the program alone: what stands in it may be another thing in the next release.
// It carries no right, so it is not signed; the sum is there to tell what was made up or cut off from what we gave out.
//
//	version 1 byte · sum 4 bytes · where the page begins, as the store says it
const cursorVersion = 1

// sealed makes the cursor of a list out of the store's. Without one it is empty: there is no next page.
func sealed(list, cursor string) string {
	if cursor == "" {
		return ""
	}
	return base64.RawURLEncoding.EncodeToString(append(cursorHead(list, cursor), cursor...))
}

// opened reads what [sealed] made for the same list.
func opened(list, text string) (string, error) {
	raw, err := base64.RawURLEncoding.Strict().DecodeString(text)
	if text == "" {
		return "", nil
	}
	const head = 1 + 4
	if err != nil || len(raw) < head {
		return "", errCursor
	}
	cursor := string(raw[head:])
	if subtle.ConstantTimeCompare(raw[:head], cursorHead(list, cursor)) != 1 {
		return "", errCursor
	}
	return cursor, nil
}

var errCursor = errors.New("want the next_cursor of the page before, of the same list")

func cursorHead(list, cursor string) []byte {
	sum := sha256.Sum256([]byte("trapeze " + list + " " + cursor))
	return append([]byte{cursorVersion}, sum[:4]...)
}
