package access

import (
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/golang-jwt/jwt/v5"
	"github.com/matryer/is"
)

// issuer signs tokens with several types of keys.
type issuer struct {
	t      *testing.T
	rsa    *rsa.PrivateKey
	ec     *ecdsa.PrivateKey
	ed     ed25519.PrivateKey
	secret []byte
	signed *Signed
}

func newIssuer(t *testing.T) *issuer {
	t.Helper()
	is := is.New(t)
	i := &issuer{t: t, secret: []byte(strings.Repeat("s", 32))}
	var err error
	i.rsa, err = rsa.GenerateKey(rand.Reader, 2048)
	is.NoErr(err)
	i.ec, err = ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	is.NoErr(err)
	_, i.ed, err = ed25519.GenerateKey(rand.Reader)
	is.NoErr(err)
	file := keys{Issuer: "https://id.example.org", Audience: "trapeze", NameClaim: "sub", RolesClaim: "roles", Keys: []*key{
		{ID: "rsa", Algorithm: "RS256", Text: public(t, &i.rsa.PublicKey)},
		{ID: "ec", Algorithm: "ES256", Text: public(t, &i.ec.PublicKey)},
		{ID: "ed", Algorithm: "EdDSA", Text: public(t, i.ed.Public())},
		{ID: "hs", Algorithm: "HS256", Text: string(i.secret)},
	}}
	raw, err := json.Marshal(file)
	is.NoErr(err)
	i.signed, err = KeysFile(written(t, string(raw)))
	is.NoErr(err)
	return i
}

func public(t *testing.T, key any) string {
	t.Helper()
	der, err := x509.MarshalPKIXPublicKey(key)
	if err != nil {
		t.Fatal(err)
	}
	return string(pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der}))
}

// claims returns a valid token's claims with changes. change alternates claim names and new values; a nil value removes the claim.
func claims(change ...any) jwt.MapClaims {
	c := jwt.MapClaims{"iss": "https://id.example.org", "aud": "trapeze", "sub": "ana", "roles": []string{"operator"},
		"exp": time.Now().Add(time.Hour).Unix()}
	for i := 0; i < len(change); i += 2 {
		c[change[i].(string)] = change[i+1]
		if change[i+1] == nil {
			delete(c, change[i].(string))
		}
	}
	return c
}

func (i *issuer) token(method jwt.SigningMethod, id any, key any, c jwt.MapClaims) string {
	i.t.Helper()
	t := jwt.NewWithClaims(method, c)
	if id != nil {
		t.Header["kid"] = id
	}
	text, err := t.SignedString(key)
	if err != nil {
		i.t.Fatal(err)
	}
	return text
}

func TestSignedTokenIdentity(t *testing.T) {
	i := newIssuer(t)
	for name, token := range map[string]string{
		"RS256":                   i.token(jwt.SigningMethodRS256, "rsa", i.rsa, claims()),
		"ES256":                   i.token(jwt.SigningMethodES256, "ec", i.ec, claims()),
		"EdDSA":                   i.token(jwt.SigningMethodEdDSA, "ed", i.ed, claims()),
		"HS256":                   i.token(jwt.SigningMethodHS256, "hs", i.secret, claims()),
		"without a kid":           i.token(jwt.SigningMethodES256, nil, i.ec, claims()),
		"roles in one text":       i.token(jwt.SigningMethodES256, "ec", i.ec, claims("roles", "operator")),
		"one of several audience": i.token(jwt.SigningMethodES256, "ec", i.ec, claims("aud", []string{"other", "trapeze"})),
	} {
		t.Run(name, func(t *testing.T) {
			is := is.New(t)
			p, err := i.signed.Authenticate(asking("Authorization", "Bearer "+token))
			is.NoErr(err)
			is.Equal(p.Name, "ana")
			is.Equal(p.Roles, []string{"operator"})
			session, _, err := i.signed.Login(token)
			is.NoErr(err)
			_, err = i.signed.Authenticate(asking("Cookie", SessionCookie+"="+session))
			is.NoErr(err) // the session is the token itself
		})
	}
}

func TestForgedOrStaleSignedToken(t *testing.T) {
	i := newIssuer(t)
	stranger, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	es := func(c jwt.MapClaims) string { return i.token(jwt.SigningMethodES256, "ec", i.ec, c) }
	good := es(claims())
	parts := strings.Split(good, ".")
	for name, token := range map[string]string{
		"alg none":                     i.token(jwt.SigningMethodNone, nil, jwt.UnsafeAllowNoneSignatureType, claims()),
		"alg none with a kid":          i.token(jwt.SigningMethodNone, "rsa", jwt.UnsafeAllowNoneSignatureType, claims()),
		"another's key":                i.token(jwt.SigningMethodRS256, "rsa", stranger, claims()),
		"a public key as secret":       i.token(jwt.SigningMethodHS256, "rsa", []byte(public(t, &i.rsa.PublicKey)), claims()),
		"the same without a kid":       i.token(jwt.SigningMethodHS256, nil, []byte(public(t, &i.rsa.PublicKey)), claims()),
		"an algorithm not in the file": i.token(jwt.SigningMethodRS512, "rsa", i.rsa, claims()),
		"a key of another algorithm":   i.token(jwt.SigningMethodPS256, "rsa", i.rsa, claims()),
		"an unknown kid":               i.token(jwt.SigningMethodES256, "../../etc/passwd", i.ec, claims()),
		"a kid with SQL":               i.token(jwt.SigningMethodES256, "x' or '1'='1", i.ec, claims()),
		"expired":                      es(claims("exp", time.Now().Add(-time.Minute).Unix())),
		"no exp":                       es(claims("exp", nil)),
		"an invalid exp":               es(claims("exp", "tomorrow")),
		"not yet valid":                es(claims("nbf", time.Now().Add(time.Hour).Unix())),
		"issued tomorrow":              es(claims("iat", time.Now().Add(24*time.Hour).Unix())),
		"another audience":             es(claims("aud", "other")),
		"no audience":                  es(claims("aud", nil)),
		"another issuer":               es(claims("iss", "https://evil.example")),
		"no issuer":                    es(claims("iss", nil)),
		"no name":                      es(claims("sub", nil)),
		"an invalid name":              es(claims("sub", 7)),
		"invalid roles":                es(claims("roles", 7)),
		"no signature":                 parts[0] + "." + parts[1] + ".",
		"two parts":                    parts[0] + "." + parts[1],
		"other claims, same signature": parts[0] + "." + strings.Split(es(claims("sub", "bob")), ".")[1] + "." + parts[2],
		"huge":                         es(claims("x", strings.Repeat("x", 1<<20))),
	} {
		t.Run(name, func(t *testing.T) {
			is := is.New(t)
			_, err := i.signed.Authenticate(asking("Authorization", "Bearer "+token))
			is.True(errors.Is(err, ErrUnauthenticated)) // as a bearer token
			_, err = i.signed.Authenticate(asking("Cookie", SessionCookie+"="+token))
			is.True(errors.Is(err, ErrUnauthenticated)) // as a session cookie
		})
	}
}

func TestKeysFileValidation(t *testing.T) {
	is := is.New(t)
	_, err := KeysFile(written(t, `{"issuer":"i","audience":"","keys":[{"kid":"a","alg":"none","key":""},{"kid":"a","alg":"HS256","key":"short"},null]}`))
	is.True(err != nil)
	for _, wrong := range []string{"an audience", `key 1: alg "none"`, "key 2: want a secret", "duplicate kid", "key 3 is null"} {
		is.True(strings.Contains(err.Error(), wrong)) // the error reports every mistake
	}
}

func TestJWTWithCrit(t *testing.T) {
	is := is.New(t)
	i := newIssuer(t)
	token := jwt.NewWithClaims(jwt.SigningMethodES256, claims())
	token.Header["kid"], token.Header["crit"], token.Header["b64"] = "ec", []string{"b64"}, true
	text, err := token.SignedString(i.ec)
	is.NoErr(err)
	_, err = i.signed.Authenticate(asking("Authorization", "Bearer "+text))
	is.True(errors.Is(err, ErrUnauthenticated))
	is.True(strings.Contains(err.Error(), "crit"))
}

func TestRolesInNestedClaim(t *testing.T) {
	i := newIssuer(t)
	for name, c := range map[string]struct {
		claim string
		value any
		want  []string
	}{
		"realm_access.roles":                   {"realm_access", map[string]any{"roles": []string{"operator"}}, []string{"operator"}},
		"resource_access.trapeze.org/ui.roles": {"resource_access", map[string]any{"trapeze.org/ui": map[string]any{"roles": "viewer"}}, []string{"viewer"}},
		"https://example.org/roles":            {"https://example.org/roles", []string{"viewer"}, []string{"viewer"}},
		"a.b.c":                                {"a", map[string]any{"b": "c"}, nil},
		"a.b":                                  {"a", []string{"b"}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			is := is.New(t)
			i.signed.file.value.RolesClaim = name
			token := i.token(jwt.SigningMethodES256, "ec", i.ec, claims("roles", []string{"platform_admin"}, c.claim, c.value))
			p, err := i.signed.Authenticate(asking("Authorization", "Bearer "+token))
			is.NoErr(err)
			is.Equal(p.Roles, c.want)
		})
	}
}

func TestRefusedJWTError(t *testing.T) {
	i := newIssuer(t)
	es := func(c jwt.MapClaims) string { return i.token(jwt.SigningMethodES256, "ec", i.ec, c) }
	for token, want := range map[string]string{
		es(claims("exp", 1700000000)):                                                   `expired (exp "2023-11-14T22:13:20Z")`,
		es(claims("nbf", 4000000000)):                                                   `not valid yet (nbf "2096-10-02T07:06:40Z")`,
		es(claims("iss", "https://evil.example")):                                       `issuer (iss "https://evil.example", want "https://id.example.org")`,
		es(claims("aud", []string{"a", "b"})):                                           `audience (aud "[a b]", want "trapeze")`,
		es(claims("sub", nil)):                                                          "the claim sub is not a name",
		i.token(jwt.SigningMethodES256, "next", i.ec, claims()):                         `kid and algorithm (alg "ES256", kid "next")`,
		i.token(jwt.SigningMethodHS256, "hs", []byte("another secret"), claims()):       `signature is invalid (alg "HS256", kid "hs")`,
		i.token(jwt.SigningMethodNone, nil, jwt.UnsafeAllowNoneSignatureType, claims()): "signing method none is invalid",
		"opaque-0123456789-0123456789":                                                  "invalid number of segments",
	} {
		_, err := i.signed.Authenticate(asking("Authorization", "Bearer "+token))
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v does not contain %s", err, want)
		}
		for part := range strings.SplitSeq(token, ".") {
			if len(part) > 8 && strings.Contains(err.Error(), part) {
				t.Errorf("%v contains a part of the token", err)
			}
		}
	}
}
