package access

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/golang-jwt/jwt/v5"
	"github.com/matryer/is"
)

const (
	anasToken = "ana-0123456789-0123456789"
	bobsToken = "bob-0123456789-0123456789"
)

// written writes text to a file and returns its path.
func written(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "secrets.json")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func line(token, name string) string {
	return `{"token":"` + token + `","name":"` + name + `","roles":["operator"]}`
}

// asking returns a request with the given headers. header alternates names and values.
func asking(header ...string) *http.Request {
	r := httptest.NewRequest("GET", "/jobs", nil)
	for i := 0; i < len(header); i += 2 {
		r.Header.Add(header[i], header[i+1])
	}
	return r
}

func TestFileTokenIdentity(t *testing.T) {
	is := is.New(t)
	tokens, err := TokenFile(written(t, `{"tokens":[`+line(anasToken, "ana")+`,`+line(bobsToken, "bob")+`]}`))
	is.NoErr(err)
	p, err := tokens.Authenticate(asking("Authorization", "Bearer "+bobsToken))
	is.NoErr(err)
	is.Equal(p.Name, "bob")
	is.Equal(p.Roles, []string{"operator"})
}

func TestInvalidFileToken(t *testing.T) {
	is := is.New(t)
	tokens, err := TokenFile(written(t, `{"tokens":[`+line(anasToken, "ana")+`]}`))
	is.NoErr(err)
	for name, r := range map[string]*http.Request{
		"nothing":             asking(),
		"an empty header":     asking("Authorization", ""),
		"no scheme":           asking("Authorization", anasToken),
		"another scheme":      asking("Authorization", "Basic "+anasToken),
		"an empty token":      asking("Authorization", "Bearer "),
		"a part of one":       asking("Authorization", "Bearer "+anasToken[:20]),
		"more than one":       asking("Authorization", "Bearer "+anasToken+"x"),
		"two headers":         asking("Authorization", "Bearer "+anasToken, "Authorization", "Bearer "+anasToken),
		"a megabyte":          asking("Authorization", "Bearer "+strings.Repeat("x", 1<<20)),
		"a token as cookie":   asking("Cookie", SessionCookie+"="+anasToken),
		"a cookie of nothing": asking("Cookie", SessionCookie+"="),
	} {
		t.Run(name, func(t *testing.T) {
			is := is.New(t)
			_, err := tokens.Authenticate(r)
			is.True(errors.Is(err, ErrUnauthenticated)) // all invalid credentials cause the same error
		})
	}
}

func TestTokensFileValidation(t *testing.T) {
	is := is.New(t)
	_, err := TokenFile(written(t, `{"tokens":[`+line("short", "ana")+`,`+line(anasToken, "")+`,`+line(anasToken, "system")+`,`+line("", "bob")+`,`+line(strings.Repeat("x", maxToken+1), "bob")+`]}`))
	is.True(err != nil)
	for _, wrong := range []string{"token 1: want 20 characters to 8192 bytes", "token 2: name", "token 3: listed twice", "token 3: name",
		"token 4: want a token or a certificate", "token 5: want 20 characters to 8192 bytes"} {
		is.True(strings.Contains(err.Error(), wrong)) // the error reports every mistake
	}
	is.True(!strings.Contains(err.Error(), anasToken)) // the error quotes no token
	_, err = TokenFile(written(t, `{"tokens":[],"tokns":[]}`))
	is.True(err != nil && strings.Contains(err.Error(), `unknown field "tokns"`))
}

// A secret that was written in the place of a field's name must not appear in a log.
func TestTokensFileSecretAsField(t *testing.T) {
	for name, parse := range map[string]func() error{
		"tokens": func() error { _, err := parseTokens([]byte(`{"tokens":[{"` + anasToken + `":"ana"}]}`)); return err },
		"keys":   func() error { _, err := parseKeys([]byte(`{"keys":[{"` + anasToken + `":"HS256"}]}`)); return err },
	} {
		t.Run(name, func(t *testing.T) {
			is := is.New(t)
			err := parse()
			is.True(err != nil && strings.Contains(err.Error(), "unknown field"))
			is.True(!strings.Contains(err.Error(), anasToken))
		})
	}
}

func TestTokensFileReload(t *testing.T) {
	is := is.New(t)
	path := written(t, `{"tokens":[`+line(anasToken, "ana")+`]}`)
	tokens, err := TokenFile(path)
	is.NoErr(err)
	tokens.file.every = 0
	session, _, err := tokens.Login(anasToken)
	is.NoErr(err)
	renew := func(text string) {
		next := path + ".next"
		is.NoErr(os.WriteFile(next, []byte(text), 0o600))
		is.NoErr(os.Rename(next, path))
	}
	renew(`{"tokens":`)
	_, err = tokens.Authenticate(asking("Authorization", "Bearer "+anasToken))
	is.NoErr(err) // an incomplete file is ignored
	renew(`{"tokens":[` + line(bobsToken, "bob") + `]}`)
	_, err = tokens.Authenticate(asking("Authorization", "Bearer "+bobsToken))
	is.NoErr(err) // the added token is accepted
	_, err = tokens.Authenticate(asking("Authorization", "Bearer "+anasToken))
	is.True(errors.Is(err, ErrUnauthenticated)) // the removed token is rejected
	_, err = tokens.Authenticate(asking("Cookie", SessionCookie+"="+session))
	is.True(errors.Is(err, ErrUnauthenticated)) // the removed token's session is rejected too
}

func TestSessionTokenIdentity(t *testing.T) {
	is := is.New(t)
	file := `{"tokens":[` + line(anasToken, "ana") + `,` + line(bobsToken, "bob") + `]}`
	tokens, err := TokenFile(written(t, file))
	is.NoErr(err)
	session, until, err := tokens.Login(bobsToken)
	is.NoErr(err)
	is.True(!strings.Contains(session, bobsToken))
	other, err := TokenFile(written(t, file))
	is.NoErr(err)
	p, err := other.Authenticate(asking("Cookie", SessionCookie+"="+session))
	is.NoErr(err) // another pod accepts the session too
	is.Equal(p.Name, "bob")
	_, err = tokens.resume(session, until.Add(time.Second))
	is.True(errors.Is(err, ErrUnauthenticated)) // the session has expired
	for i := range session {
		changed := []byte(session)
		if changed[i]++; changed[i] == '{' || changed[i] == '[' || changed[i] == ':' || changed[i] == '`' || changed[i] == '.' {
			changed[i] = 'A'
		}
		if _, err := tokens.resume(string(changed), time.Now()); err == nil {
			t.Fatalf("a session with a changed character %d is accepted", i)
		}
	}
	_, _, err = tokens.Login("no-such-token-0123456789")
	is.True(errors.Is(err, ErrUnauthenticated))
}

func TestReservedPrincipals(t *testing.T) {
	i := newIssuer(t)
	for _, name := range []string{"anonymous", "api", "system", "handler", "System"} {
		is := is.New(t)
		_, err := TokenFile(written(t, `{"tokens":[`+line(anasToken, name)+`]}`))
		is.True(err != nil && strings.Contains(err.Error(), "token 1: name: principal") && strings.Contains(err.Error(), "is reserved"))
		p, err := i.signed.Authenticate(asking("Authorization", "Bearer "+i.token(jwt.SigningMethodES256, "ec", i.ec, claims("sub", name))))
		is.NoErr(err)
		is.True(p.Validate() != nil) // package api refuses the principal
	}
}
