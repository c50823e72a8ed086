package access

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/golang-jwt/jwt/v5"
	"github.com/matryer/is"
)

// provider serves a key set that tests can change, and counts requests.
type provider struct {
	*httptest.Server
	body  atomic.Value // string
	asked atomic.Int64
}

func newProvider(t *testing.T, body string) *provider {
	t.Helper()
	p := &provider{}
	p.body.Store(body)
	p.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		p.asked.Add(1)
		_, _ = w.Write([]byte(p.body.Load().(string)))
	}))
	t.Cleanup(p.Close)
	return p
}

// jwks returns a key set. keys alternates kids and keys.
func jwks(t *testing.T, keys ...any) string {
	t.Helper()
	var set jose.JSONWebKeySet
	for i := 0; i < len(keys); i += 2 {
		set.Keys = append(set.Keys, jose.JSONWebKey{KeyID: keys[i].(string), Key: keys[i+1]})
	}
	raw, err := json.Marshal(set)
	if err != nil {
		t.Fatal(err)
	}
	return string(raw)
}

// trusting returns an authenticator that trusts a key set.
func trusting(t *testing.T, source string) *Signed {
	t.Helper()
	signed, err := KeysFile(written(t, fmt.Sprintf(`{"issuer":"https://id.example.org","audience":"trapeze","jwks":%q}`, source)))
	if err != nil {
		t.Fatal(err)
	}
	return signed
}

// accepts reports whether a token authenticates ana.
func accepts(s *Signed, token string) bool {
	p, err := s.Authenticate(asking("Authorization", "Bearer "+token))
	return err == nil && p.Name == "ana"
}

func TestJWKSFileKeyRotation(t *testing.T) {
	is := is.New(t)
	i := newIssuer(t)
	path := written(t, jwks(t, "ec", i.ec.Public()))
	signed := trusting(t, path)
	is.True(accepts(signed, i.token(jwt.SigningMethodES256, "ec", i.ec, claims())))
	ed := i.token(jwt.SigningMethodEdDSA, "ed", i.ed, claims())
	is.True(!accepts(signed, ed))
	is.NoErr(os.WriteFile(path, []byte(jwks(t, "ed", i.ed.Public())), 0o600))
	set := signed.file.get().set
	set.interval, set.fresh = 0, 0
	is.True(accepts(signed, ed))
	is.True(!accepts(signed, i.token(jwt.SigningMethodES256, "ec", i.ec, claims()))) // the key was removed
	_, err := KeysFile(written(t, `{"issuer":"i","audience":"a","jwks":"/nowhere/jwks.json"}`))
	is.True(err != nil && strings.Contains(err.Error(), "/nowhere/jwks.json")) // a missing file is a configuration error
}

func TestJWKSURLCacheRotation(t *testing.T) {
	is := is.New(t)
	i := newIssuer(t)
	p := newProvider(t, jwks(t, "rsa", &i.rsa.PublicKey))
	signed := trusting(t, p.URL)
	rsa, ec := i.token(jwt.SigningMethodRS256, "rsa", i.rsa, claims()), i.token(jwt.SigningMethodES256, "ec", i.ec, claims())
	for range 20 {
		is.True(accepts(signed, rsa))
	}
	is.Equal(p.asked.Load(), int64(1)) // the keys are cached

	p.body.Store(jwks(t, "rsa", &i.rsa.PublicKey, "ec", i.ec.Public()))
	for n := range 20 {
		is.True(!accepts(signed, i.token(jwt.SigningMethodES256, fmt.Sprint("kid ", n), i.ec, claims())))
	}
	is.Equal(p.asked.Load(), int64(1)) // within the interval, unknown kids cause no request
	set := signed.file.get().set
	is.True(set.interval >= 10*time.Second && set.interval <= time.Minute)
	set.tried = time.Now().Add(-set.interval)
	is.True(accepts(signed, ec)) // after the interval, an unknown kid causes one request
	is.True(!accepts(signed, i.token(jwt.SigningMethodES256, "another", i.ec, claims())))
	is.Equal(p.asked.Load(), int64(2))

	p.body.Store(jwks(t, "ec", i.ec.Public()))
	is.True(accepts(signed, rsa)) // still cached
	set.latest.Store(&readKeys{set.latest.Load().keys, time.Now().Add(-set.fresh)})
	set.tried = time.Now().Add(-set.interval)
	is.True(!accepts(signed, rsa)) // the cache has expired, and the key was removed
	is.True(accepts(signed, ec))
}

func TestUnresponsiveJWKSPreviousKeys(t *testing.T) {
	is := is.New(t)
	i := newIssuer(t)
	token := i.token(jwt.SigningMethodES256, "ec", i.ec, claims())
	p := newProvider(t, jwks(t, "ec", i.ec.Public()))
	signed := trusting(t, p.URL)
	set := signed.file.get().set
	set.interval, set.fresh = 0, 0
	for name, body := range map[string]string{"no JSON": "<html>", "no keys": `{"keys":[]}`, "too large": strings.Repeat(" ", maxKeySet) + jwks(t, "ed", i.ed.Public()),
		"too many": `{"keys":[` + strings.Repeat("{},", maxKeys) + "{}]}"} {
		p.body.Store(body)
		if !accepts(signed, token) {
			t.Errorf("%s: the previous keys are not in use", name)
		}
	}
	p.Close()
	is.True(accepts(signed, token))
	late := trusting(t, p.URL) // the pod starts even if the provider does not respond
	is.True(!accepts(late, token))
}

// The provider sends the beginning of a response and then stalls.
func TestHangingJWKSTimeout(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	gone := make(chan struct{})
	hangs := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = w.Write([]byte(`{"keys":[`))
		_ = http.NewResponseController(w).Flush()
		<-r.Context().Done()
		close(gone)
	}))
	defer hangs.Close()
	began := time.Now()
	trusting(t, hangs.URL)
	<-gone // the pod has closed the connection
	is.True(time.Since(began) < 3*keySetTimeout)
}

func TestJWKSPlainHTTPLoopback(t *testing.T) {
	is := is.New(t)
	for _, source := range []string{"http://id.example.org/certs", "http://10.0.0.1/certs", "http://127.0.0.1.example.org/certs", "ftp://127.0.0.1/certs",
		"file:///etc/jwks.json", "https:///certs", "https://user:hunter2@id.example.org/certs"} {
		_, err := KeysFile(written(t, fmt.Sprintf(`{"issuer":"i","audience":"a","jwks":%q}`, source)))
		is.True(err != nil && strings.Contains(err.Error(), "want a path or an https URL")) // refused
		is.True(!strings.Contains(err.Error(), "hunter2"))
	}
	i := newIssuer(t)
	p := newProvider(t, jwks(t, "ec", i.ec.Public()))
	redirect := httptest.NewServer(http.RedirectHandler(p.URL, http.StatusFound))
	defer redirect.Close()
	is.True(!accepts(trusting(t, redirect.URL), i.token(jwt.SigningMethodES256, "ec", i.ec, claims()))) // a redirect could lead to plain HTTP
	is.Equal(p.asked.Load(), int64(0))
}

func TestJWKSSigningKeys(t *testing.T) {
	is := is.New(t)
	i := newIssuer(t)
	set := jose.JSONWebKeySet{Keys: []jose.JSONWebKey{
		{KeyID: "private", Key: i.ec}, {KeyID: "secret", Key: i.secret}, {KeyID: "enc", Key: &i.rsa.PublicKey, Use: "enc"},
		{KeyID: "other", Key: &i.rsa.PublicKey, Algorithm: "PS256"}, {KeyID: "good", Key: i.ed.Public(), Use: "sig", Algorithm: "EdDSA"},
	}}
	raw, err := json.Marshal(set)
	is.NoErr(err)
	text := strings.Replace(string(raw), `{"keys":[`, `{"keys":[{"kty":"new"},7,`, 1)
	signed := trusting(t, written(t, text))
	for name, token := range map[string]string{
		"private": i.token(jwt.SigningMethodES256, "private", i.ec, claims()), "secret": i.token(jwt.SigningMethodHS256, "secret", i.secret, claims()),
		"enc": i.token(jwt.SigningMethodRS256, "enc", i.rsa, claims()), "other": i.token(jwt.SigningMethodPS256, "other", i.rsa, claims()),
	} {
		_, err := signed.Authenticate(asking("Authorization", "Bearer "+token))
		if !errors.Is(err, ErrUnauthenticated) {
			t.Errorf("the key %s is used", name)
		}
	}
	is.True(accepts(signed, i.token(jwt.SigningMethodEdDSA, "good", i.ed, claims())))
}

func FuzzJWKS(f *testing.F) {
	f.Add([]byte(`{"keys":[{"kty":"OKP","crv":"Ed25519","kid":"a","x":"11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo"}]}`))
	f.Add([]byte(`{"keys":[{"kty":"oct","k":"c3Nzc3Nzc3Nzc3Nzc3Nzc3Nzc3Nzc3Nzc3Nzc3Nzc3M"}]}`))
	f.Add([]byte(`{"keys":[{"kty":"EC","crv":"P-256","x":"","y":""},{"kty":"RSA","n":"AQ","e":"AQAB"},null,7]}`))
	f.Add([]byte(`[]`))
	f.Fuzz(func(t *testing.T, raw []byte) {
		keys, err := parseKeySet(raw)
		if err == nil && len(keys) == 0 {
			t.Errorf("%q has no keys", raw)
		}
		for _, key := range keys {
			if algorithm, err := algorithmOf(key.key); err != nil || algorithm != key.Algorithm || algorithm == "HS256" {
				t.Errorf("%q has the key %+v", raw, key)
			}
		}
	})
}

// When the keys file is edited, an unchanged key set keeps its keys even if its provider does not respond. An edit that names a key set
// that cannot be read is invalid.
func TestKeysFileEditUnchangedJWKS(t *testing.T) {
	is := is.New(t)
	i := newIssuer(t)
	p := newProvider(t, jwks(t, "ec", i.ec.Public()))
	file := func(source, more string) []byte {
		return fmt.Appendf(nil, `{"issuer":"https://id.example.org","audience":"trapeze","jwks":%q%s}`, source, more)
	}
	path := written(t, string(file(p.URL, "")))
	signed, err := KeysFile(path)
	is.NoErr(err)
	signed.file.every = 0
	token := i.token(jwt.SigningMethodES256, "ec", i.ec, claims())
	is.True(accepts(signed, token))
	p.Close()
	is.NoErr(os.WriteFile(path, file(p.URL, `,"name_claim":"sub"`), 0o600))
	is.True(accepts(signed, token))
	is.NoErr(os.WriteFile(path, file("/nowhere/jwks.json", ""), 0o600))
	is.True(accepts(signed, token))
}

func TestUnknownKeyJWKSReadTimeout(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	i := newIssuer(t)
	set, err := newKeySet(written(t, jwks(t, "ec", i.ec.Public())))
	is.NoErr(err)
	is.Equal(len(set.renewed()), 1)
	set.reading <- struct{}{} // simulates a hanging read by another caller
	is.Equal(len(set.renewed()), 1)
}
