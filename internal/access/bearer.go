package access

import (
	"fmt"
	"net/http"
	"strings"
)

// SessionCookie is the name of the cookie that holds a session in place of a token. Browsers see a longer name, which package api replaces
// with this one before it authenticates the request.
const SessionCookie = "trapeze_session"

// maxToken is the maximum length of a token, in bytes.
const maxToken = 8 << 10

// bearer returns the token in a request's Authorization header, or else the session in its cookie.
func bearer(r *http.Request) (token string, session bool, err error) {
	switch headers := r.Header.Values("Authorization"); {
	case len(headers) > 1:
		return "", false, fmt.Errorf("%w: several Authorization headers", ErrUnauthenticated)
	case len(headers) == 1:
		scheme, token, _ := strings.Cut(headers[0], " ")
		if !strings.EqualFold(scheme, "Bearer") || token == "" || len(token) > maxToken {
			return "", false, fmt.Errorf("%w: want Authorization: Bearer with a token", ErrUnauthenticated)
		}
		return token, false, nil
	}
	cookie, err := r.Cookie(SessionCookie)
	if err != nil || cookie.Value == "" || len(cookie.Value) > maxToken {
		return "", false, fmt.Errorf("%w: neither a token nor a session", ErrUnauthenticated)
	}
	return cookie.Value, true, nil
}
