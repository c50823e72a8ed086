package access

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"fmt"
	"time"
)

// sessionFor is the lifetime of a browser session.
const sessionFor = 12 * time.Hour

// A session contains an identifier of the token that began it, its expiry time, and an authentication code. The code's key is derived from
// the token. Every pod with the same token file accepts the session without storing it, and removing the token ends it. The format is:
//
//	version 1 byte · token 8 bytes · end 8 bytes, Unix seconds · code 32 bytes, HMAC-SHA-256 of everything before it
const (
	sessionVersion = 1
	sessionBytes   = 1 + 8 + 8 + sha256.Size
)

// Login starts a browser session for a token. It returns the cookie's value and the session's expiry time.
func (t *Tokens) Login(given string) (session string, until time.Time, err error) {
	found, err := t.find(given)
	if err != nil {
		return "", time.Time{}, err
	}
	until = time.Now().Add(sessionFor)
	raw := append([]byte{sessionVersion}, found.mark()...)
	raw = binary.BigEndian.AppendUint64(raw, uint64(until.Unix())) // #nosec G115 -- the time is after 1970
	return base64.RawURLEncoding.EncodeToString(append(raw, found.code(raw)...)), until, nil
}

// resume returns the token that began a session.
func (t *Tokens) resume(session string, now time.Time) (token, error) {
	raw, err := base64.RawURLEncoding.Strict().DecodeString(session)
	if err != nil || len(raw) != sessionBytes || raw[0] != sessionVersion {
		return token{}, fmt.Errorf("%w: invalid session", ErrUnauthenticated)
	}
	said, code := raw[:sessionBytes-sha256.Size], raw[sessionBytes-sha256.Size:]
	if int64(binary.BigEndian.Uint64(said[9:])) <= now.Unix() { // #nosec G115 -- a negative time counts as expired
		return token{}, fmt.Errorf("%w: the session has expired", ErrUnauthenticated)
	}
	for _, entry := range t.file.get().tokens {
		if hmac.Equal(entry.mark(), said[1:9]) && hmac.Equal(entry.code(said), code) {
			return entry, nil
		}
	}
	return token{}, fmt.Errorf("%w: invalid session, or its token was removed", ErrUnauthenticated)
}

// mark returns the identifier of a token in sessions.
func (t token) mark() []byte {
	sum := sha256.Sum256(append([]byte("trapeze session of "), t.hash[:]...))
	return sum[:8]
}

func (t token) code(said []byte) []byte {
	mac := hmac.New(sha256.New, append([]byte("trapeze session key "), t.hash[:]...))
	mac.Write(said)
	return mac.Sum(nil)
}
