package e2e

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/golang-jwt/jwt/v5"
	"github.com/matryer/is"
)

// provider is an identity provider with three keys: an RSA key in the keys file, an ECDSA key in its key set, and a secret.
type provider struct {
	t      *testing.T
	rsa    *rsa.PrivateKey
	ec     *ecdsa.PrivateKey
	secret []byte
	public string // the RSA public key in PEM
	file   string
}

func newProvider(t *testing.T) *provider {
	t.Helper()
	is := is.New(t)
	p := &provider{t: t, secret: []byte("a secret of more than thirty-two bytes")}
	var err error
	p.rsa, err = rsa.GenerateKey(rand.Reader, 2048)
	is.NoErr(err)
	p.ec, err = ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	is.NoErr(err)
	der, err := x509.MarshalPKIXPublicKey(&p.rsa.PublicKey)
	is.NoErr(err)
	p.public = string(pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der}))
	set, err := json.Marshal(jose.JSONWebKeySet{Keys: []jose.JSONWebKey{{KeyID: "ec", Key: p.ec.Public(), Use: "sig"}}})
	is.NoErr(err)
	certs := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(set) }))
	t.Cleanup(certs.Close)
	raw, err := json.Marshal(map[string]any{"issuer": "https://id.example.org", "audience": "trapeze", "roles_claim": "realm_access.roles", "jwks": certs.URL,
		"keys": []any{map[string]string{"kid": "rsa", "alg": "RS256", "key": p.public}, map[string]string{"kid": "hs", "alg": "HS256", "key": string(p.secret)}}})
	is.NoErr(err)
	p.file = filepath.Join(t.TempDir(), "keys.json")
	is.NoErr(os.WriteFile(p.file, raw, 0o600))
	return p
}

// token returns a signed token for root with one claim and some header fields changed.
func (p *provider) token(method jwt.SigningMethod, key any, header map[string]any, claim string, value any) string {
	p.t.Helper()
	claims := jwt.MapClaims{"iss": "https://id.example.org", "aud": "trapeze", "sub": "root", "exp": time.Now().Add(time.Hour).Unix(),
		"realm_access": map[string]any{"roles": []string{"platform_admin"}}}
	if claims[claim] = value; value == nil {
		delete(claims, claim)
	}
	t := jwt.NewWithClaims(method, claims)
	for name, value := range header {
		t.Header[name] = value
	}
	text, err := t.SignedString(key)
	if err != nil {
		p.t.Fatal(err)
	}
	return text
}

// forged returns tokens that a pod must reject, keyed by attack name.
func (p *provider) forged(evil string) map[string]string {
	other, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	is.New(p.t).NoErr(err)
	es := func(claim string, value any) string {
		return p.token(jwt.SigningMethodES256, p.ec, map[string]any{"kid": "ec"}, claim, value)
	}
	signed := func(header map[string]any) string {
		return p.token(jwt.SigningMethodES256, p.ec, header, "sub", "root")
	}
	stolen := func(header map[string]any) string {
		return p.token(jwt.SigningMethodES256, other, header, "sub", "root")
	}
	hs := func(key []byte, kid any) string {
		return p.token(jwt.SigningMethodHS256, key, map[string]any{"kid": kid}, "sub", "root")
	}
	good := strings.Split(es("sub", "root"), ".")
	changed := "A"
	if good[2][0] == 'A' {
		changed = "B"
	}
	embedded, err := jose.JSONWebKey{Key: other.Public(), KeyID: "ec"}.MarshalJSON()
	is.New(p.t).NoErr(err)
	now := time.Now()
	return map[string]string{
		"alg none":                   p.token(jwt.SigningMethodNone, jwt.UnsafeAllowNoneSignatureType, map[string]any{"kid": "ec"}, "sub", "root"),
		"alg None":                   base64.RawURLEncoding.EncodeToString([]byte(`{"alg":"None","kid":"ec"}`)) + "." + good[1] + ".",
		"another key":                stolen(map[string]any{"kid": "ec"}),
		"another key without a kid":  stolen(nil),
		"a public key as a secret":   hs([]byte(p.public), "rsa"),
		"a public key, kid of HS256": hs([]byte(p.public), "hs"),
		"an empty secret":            hs([]byte{}, "hs"),
		"a secret from /dev/null":    hs([]byte{}, "../../../../dev/null"),
		"a kid with SQL":             hs([]byte("x"), "x' union select 'x"),
		"a kid that is a command":    hs([]byte("x"), "|touch /tmp/x"),
		"a kid that is a list":       stolen(map[string]any{"kid": []string{"ec"}}),
		"a kid of another algorithm": signed(map[string]any{"kid": "rsa"}),
		"a long kid":                 stolen(map[string]any{"kid": strings.Repeat("k", 4000)}),
		"a key set of the attacker":  stolen(map[string]any{"kid": "evil", "jku": evil, "x5u": evil}),
		"a key in the header":        stolen(map[string]any{"kid": "ec", "jwk": json.RawMessage(embedded)}),
		"critical extensions":        signed(map[string]any{"kid": "ec", "crit": []string{"exp"}}),
		"expired":                    es("exp", now.Add(-time.Minute).Unix()),
		"never expires":              es("exp", nil),
		"expires in text":            es("exp", "2999-01-01"),
		"not valid yet":              es("nbf", now.Add(time.Hour).Unix()),
		"issued tomorrow":            es("iat", now.Add(24*time.Hour).Unix()),
		"another audience":           es("aud", "other"),
		"no audience":                es("aud", nil),
		"another issuer":             es("iss", "https://id.example.org.evil.example"),
		"no issuer":                  es("iss", nil),
		"no name":                    es("sub", nil),
		"a reserved name":            es("sub", "system"),
		"the name of no credentials": es("sub", "anonymous"),
		"a name with a line break":   es("sub", "root\nadmin"),
		"roles that are a number":    es("realm_access", map[string]any{"roles": 7}),
		"no signature":               good[0] + "." + good[1] + ".",
		"other claims":               good[0] + "." + base64.RawURLEncoding.EncodeToString([]byte(`{"sub":"root"}`)) + "." + good[2],
		"a changed bit":              good[0] + "." + good[1] + "." + changed + good[2][1:],
		"an encrypted token":         good[0] + "." + good[1] + "." + good[2] + ".a.b",
		"padding":                    good[0] + "=." + good[1] + "." + good[2],
		"a header that is not JSON":  "x." + good[1] + "." + good[2],
		"nothing but dots":           "..",
		"a token of a tokens file":   "root-0123456789-0123456789",
		"longer than a token may be": es("x", strings.Repeat("x", 10_000)),
		"many levels of claims":      es("realm_access", json.RawMessage(strings.Repeat(`[`, 3000)+strings.Repeat(`]`, 3000))),
	}
}

func TestAttackForgedJWTs(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	var lured atomic.Int64
	evil := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { lured.Add(1) }))
	defer evil.Close()
	p := newProvider(t)
	a := attackedWith(t, "TRAPEZE_AUTH=jwt", "TRAPEZE_JWT_KEYS_FILE="+p.file)
	signIn := func(token string) reply {
		return a.send("POST", "/ui/login", url.Values{"token": {token}}.Encode(), "Content-Type", "application/x-www-form-urlencoded")
	}
	cookie := "trapeze_session_" + a.HTTP[strings.LastIndex(a.HTTP, ":")+1:]
	forged := p.forged(evil.URL)
	is.Equal(signIn(forged["expired"]).status, http.StatusUnauthorized) // the log records the first refusals
	is.Equal(a.send("GET", "/jobs", "", "Authorization", "Bearer "+forged["another audience"]).status, http.StatusUnauthorized)
	for name, token := range forged {
		begun := signIn(token).status // 429 after twenty wrong tokens
		succeeded(t, name, map[string]bool{
			"a read is let through":      a.send("GET", "/jobs", "", "Authorization", "Bearer "+token).status != http.StatusUnauthorized,
			"a change is let through":    a.send("POST", "/admin/workers/freeze", "", "Authorization", "Bearer "+token).status != http.StatusUnauthorized,
			"a page is shown":            a.send("GET", "/ui/jobs", "", "Authorization", "Bearer "+token).status != http.StatusUnauthorized,
			"a cookie is let through":    a.send("GET", "/jobs", "", "Cookie", cookie+"="+token).status != http.StatusUnauthorized,
			"a session begins":           begun != http.StatusUnauthorized && begun != http.StatusTooManyRequests,
			"the log contains the token": len(token) > 40 && strings.Contains(a.log.String(), token[len(token)-40:]),
		})
	}
	is.Equal(lured.Load(), int64(0)) // the pod does not request any URL named in a token
	for _, why := range []string{"token is expired", "want \\\"trapeze\\\"", "path=/ui/login"} {
		if !strings.Contains(a.log.String(), why) {
			t.Errorf("the log does not contain %s", why)
		}
	}
	for _, token := range []string{p.token(jwt.SigningMethodES256, p.ec, map[string]any{"kid": "ec"}, "sub", "root"), p.token(jwt.SigningMethodRS256, p.rsa, map[string]any{"kid": "rsa"}, "sub", "root")} {
		audit := a.send("GET", "/admin/audit?action=authenticate", "", "Authorization", "Bearer "+token)
		is.Equal(audit.status, http.StatusOK)
		is.True(strings.Contains(audit.text, `"requests":1`)) // the first request has a separate entry; the next minute's entry covers the others
		is.Equal(signIn(token).status, http.StatusNoContent)
	}
}

// This test tries every type of token that is not in the tokens file.
func TestAttackGuessedTokens(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	a := attacked(t)
	session := a.session("uma")
	name, value, _ := strings.Cut(session, "=")
	raw, err := base64.RawURLEncoding.DecodeString(value)
	is.NoErr(err)
	later := append([]byte{}, raw...)
	later[9]++ // the expiry time
	for _, header := range [][]string{
		{"Authorization", "Bearer root-0123456789-012345678"}, {"Authorization", "Bearer root-0123456789-01234567890"}, {"Authorization", "Bearer ROOT-0123456789-0123456789"},
		{"Authorization", "root-0123456789-0123456789"}, {"Authorization", "Basic cm9vdDpyb290"}, {"Authorization", "Bearer " + value}, {"Authorization", "Bearer"},
		{"Cookie", name + "=root-0123456789-0123456789"}, {"Cookie", name + "=" + base64.RawURLEncoding.EncodeToString(later)}, {"Cookie", name + "=" + value[:len(value)-2]},
		{"Cookie", "trapeze_session=" + value}, {"Cookie", "__Host-" + name + "=" + value}, {"Cookie", name + `="` + value + `x"`},
		{"X-Forwarded-User", "root", "X-Forwarded-Groups", "platform_admin"}, {"X-Api-Key", "root-0123456789-0123456789"},
	} {
		for _, request := range [][2]string{{"GET", "/jobs"}, {"POST", "/jobs"}, {"GET", "/admin/roles?token=root-0123456789-0123456789"}, {"GET", "/events/stream"}} {
			if got := a.send(request[0], request[1], "", append(header, "Sec-Fetch-Site", "same-origin")...); got.status != http.StatusUnauthorized {
				t.Errorf("%v %v: %d %s", request, header, got.status, short(got.text))
			}
		}
	}
	is.Equal(a.send("GET", "/jobs", "", "Cookie", session).status, http.StatusOK)
	is.True(a.refusals("anonymous") > 10) // all refused changes, and the first request with a wrong token
	is.True(strings.Contains(a.ask("root", "GET", "/admin/audit?action=session.start", "").text, `"actor":"uma"`))
	is.True(!strings.Contains(a.log.String(), "0123456789-01234")) // no token is logged
}

func TestServeStreamsPerPrincipal(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	a := attacked(t, "TRAPEZE_STREAMS_PER_PRINCIPAL=2")
	open := func(who string) (*http.Response, error) {
		request, err := http.NewRequestWithContext(t.Context(), "GET", a.HTTP+"/events/stream", nil)
		is.NoErr(err)
		request.Header.Set("Authorization", "Bearer "+who+"-0123456789-0123456789")
		return http.DefaultClient.Do(request)
	}
	for n, want := range []int{http.StatusOK, http.StatusOK, http.StatusTooManyRequests} {
		response, err := open("vic")
		is.NoErr(err)
		defer response.Body.Close()
		if response.StatusCode != want {
			t.Errorf("stream %d: %d", n+1, response.StatusCode)
		}
	}
	response, err := open("ops")
	is.NoErr(err)
	defer response.Body.Close()
	is.Equal(response.StatusCode, http.StatusOK) // every other principal has a separate limit
}
