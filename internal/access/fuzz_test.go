package access

import (
	"bytes"
	"crypto/ed25519"
	"encoding/json"
	"errors"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/golang-jwt/jwt/v5"
)

// A token file is either accepted, in which case each of its tokens works, or rejected with an error that reveals no token.
func FuzzTokenFile(f *testing.F) {
	for _, text := range []string{
		`{"tokens":[` + line(anasToken, "ana") + `,` + line(bobsToken, "bob") + `]}`, `{"tokens":[` + line(anasToken, "ana") + `,` + line(anasToken, "bob") + `]}`,
		`{"tokens":[` + line("short", "ana") + `]}`, `{"tokens":[` + line(anasToken, "") + `]}`, `{"tokens":[` + line(anasToken, "system") + `]}`,
		`{"tokens":[` + line(anasToken, `a\u0000`) + `]}`, `{"tokens":null}`, `{"tokens":[null]}`, `{"token":[]}`,
		`{"tokens":[{"certificate":"spiffe://a/b","name":"b","kinds":["gpu.*"]},` + line(anasToken, "ana") + `]}`, `{"tokens":[]}{}`, `[]`, ``, "\xff",
		`{"tokens":[{"token":"ééééééééééééééééééééé","name":"é","roles":null}]}`, `{"tokens":"` + anasToken + `"}`,
		`{"tokens":[{"token":"` + anasToken + `","` + anasToken + `":null}]}`,
	} {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		var file struct {
			Tokens []struct{ Token, Certificate, Name string }
		}
		said := json.NewDecoder(bytes.NewReader(raw)).Decode(&file)
		understood, err := parseTokens(raw)
		if err != nil {
			for _, one := range file.Tokens {
				if utf8.RuneCountInString(one.Token) >= minToken && !strings.Contains(one.Name, one.Token) && strings.Contains(err.Error(), one.Token) {
					t.Errorf("%q: the error reveals a token: %v", raw, err)
				}
			}
			return
		}
		if said != nil || len(understood.tokens)+len(understood.certificates) != len(file.Tokens) {
			t.Fatalf("%q has %d entries, of which %d were parsed: %v", raw, len(file.Tokens), len(understood.tokens)+len(understood.certificates), said)
		}
		all := &Tokens{file: &watchedFile[secrets]{value: understood, checkedAt: time.Now(), every: time.Hour}}
		for _, one := range file.Tokens {
			if who, ok := understood.certificates[one.Certificate]; one.Certificate != "" {
				if !ok || who.Name != one.Name {
					t.Errorf("%q: the certificate of %q belongs to %q", raw, one.Certificate, who.Name)
				}
				continue
			}
			found, err := all.find(one.Token)
			if err != nil || found.who.Name != one.Name || (Principal{Name: found.who.Name}).Validate() != nil {
				t.Errorf("%q: the token of %q belongs to %q: %v", raw, one.Name, found.who.Name, err)
			}
		}
	})
}

func FuzzJWTKeysFile(f *testing.F) {
	secret := strings.Repeat("s", 32)
	for _, text := range []string{
		`{"issuer":"i","audience":"a","keys":[{"kid":"1","alg":"HS256","key":"` + secret + `"}]}`,
		`{"issuer":"i","audience":"a","keys":[{"kid":"1","alg":"HS256","key":"` + secret + `"},{"kid":"1","alg":"HS256","key":"` + secret + `"}]}`,
		`{"issuer":"i","audience":"a","keys":[{"kid":"1","alg":"none","key":""}]}`, `{"issuer":"i","audience":"a","keys":[null]}`,
		`{"issuer":"i","audience":"a","keys":[{"alg":"RS256","key":"-----BEGIN PUBLIC KEY-----\nAA==\n-----END PUBLIC KEY-----"}]}`,
		`{"issuer":"i","audience":"a","keys":[{"alg":"HS256","key":"-----BEGIN PUBLIC KEY-----\nAAAAAAAAAAAAAAAAAAAAAAAA"}]}`,
		`{"issuer":"i","audience":"a","jwks":"https://id.example.org/certs"}`, `{"issuer":"i","audience":"a","jwks":"http://id.example.org/certs"}`,
		`{"issuer":"","audience":"","keys":[]}`, `null`, ``,
	} {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		k, err := parseKeys(raw)
		if err != nil {
			return
		}
		if k.Issuer == "" || k.Audience == "" || len(k.Keys) == 0 && k.set == nil {
			t.Errorf("%q accepts any token", raw)
		}
		for _, key := range k.Keys {
			if secret, ok := key.key.([]byte); !slices.Contains(algorithms, key.Algorithm) || key.key == nil || ok && len(secret) < 32 {
				t.Errorf("%q has the key %+v", raw, key)
			}
		}
	})
}

// A request is authenticated only as the principal for which its token was signed, regardless of the rest of the token.
func FuzzSignedJWT(f *testing.F) {
	secret, edwards := []byte(strings.Repeat("s", 32)), ed25519.NewKeyFromSeed(bytes.Repeat([]byte{7}, ed25519.SeedSize))
	k := &keys{Issuer: "https://id.example.org", Audience: "trapeze", NameClaim: "sub", RolesClaim: "roles", Keys: []*key{
		{ID: "hs", Algorithm: "HS256", key: secret}, {ID: "ed", Algorithm: "EdDSA", key: edwards.Public()},
	}}
	signed := &Signed{file: &watchedFile[*keys]{value: k, checkedAt: time.Now(), every: 24 * time.Hour}}
	ends := time.Date(2200, 1, 1, 0, 0, 0, 0, time.UTC).Unix()
	for _, c := range []jwt.MapClaims{claims("exp", ends), claims("exp", ends, "roles", nil), claims("exp", ends, "sub", 7), claims("exp", "x"), claims("exp", 1)} {
		one, err1 := jwt.NewWithClaims(jwt.SigningMethodHS256, c).SignedString(secret)
		other, err2 := jwt.NewWithClaims(jwt.SigningMethodEdDSA, c).SignedString(edwards)
		bare, err3 := jwt.NewWithClaims(jwt.SigningMethodNone, c).SignedString(jwt.UnsafeAllowNoneSignatureType)
		if err := errors.Join(err1, err2, err3); err != nil {
			f.Fatal(err)
		}
		for _, token := range []string{one, other, bare, one[:strings.LastIndex(one, ".")+1]} {
			f.Add("Bearer "+token, "")
			f.Add("", SessionCookie+"="+token)
		}
	}
	f.Add("Bearer ", "a=b")
	f.Add("basic YTpi", SessionCookie+`="`)
	f.Fuzz(func(t *testing.T, authorization, cookie string) {
		r := asking()
		if authorization != "" {
			r.Header["Authorization"] = []string{authorization}
		}
		r.Header["Cookie"] = []string{cookie}
		p, err := signed.Authenticate(r)
		switch {
		case err == nil && p.Name != "ana":
			t.Errorf("%q, %q is accepted as %q", authorization, cookie, p.Name)
		case err != nil && (!errors.Is(err, ErrUnauthenticated) || p.Name != ""):
			t.Errorf("%q, %q: %+v, %v", authorization, cookie, p, err)
		}
	})
}

// Every accepted session belongs to a token in the file and has not expired.
func FuzzSession(f *testing.F) {
	file, err := parseTokens([]byte(`{"tokens":[` + line(anasToken, "ana") + `,` + line(bobsToken, "bob") + `]}`))
	if err != nil {
		f.Fatal(err)
	}
	tokens := &Tokens{file: &watchedFile[secrets]{value: file, checkedAt: time.Now(), every: 24 * time.Hour}}
	for _, given := range []string{anasToken, bobsToken} {
		session, _, err := tokens.Login(given)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(session, int64(0))
		f.Add(session+"A", int64(0))
		f.Add(session, int64(13*time.Hour/time.Second))
	}
	f.Add("", int64(0))
	f.Fuzz(func(t *testing.T, session string, later int64) {
		found, err := tokens.resume(session, time.Unix(time.Now().Unix()+later, 0))
		switch {
		case err != nil && !errors.Is(err, ErrUnauthenticated):
			t.Errorf("%q: %v", session, err)
		case err == nil && (found.who.Name != "ana" && found.who.Name != "bob" || later > int64(sessionFor/time.Second)):
			t.Errorf("%q is accepted as %q, %d s later", session, found.who.Name, later)
		}
	})
}

// Parsing proxy addresses loses no information. A sender that is not a trusted proxy cannot spoof its address.
func FuzzTrustedProxyAddress(f *testing.F) {
	f.Add("10.1.0.0/16", "10.1.2.3:80", "1.2.3.4, 10.1.9.9")
	f.Add("::1", "[::1]:80", "fe80::1%eth0")
	f.Add("::ffff:10.0.0.1", "10.0.0.1:1", ",,")
	f.Add("10.1.2.3/8", "", "x")
	f.Fuzz(func(t *testing.T, block, from, forwarded string) {
		r := asking()
		r.RemoteAddr, r.Header = from, http.Header{"X-Forwarded-For": {forwarded}}
		if client := (Proxies{}).Client(r); client != Peer(r) {
			t.Errorf("%s is taken for %s", from, client)
		}
		proxies, err := ParseProxies([]string{block})
		if err != nil {
			return
		}
		again, err := ParseProxies([]string{proxies[0].String()})
		if err != nil || !slices.Equal(again, proxies) {
			t.Errorf("%q is %v, which is %v: %v", block, proxies, again, err)
		}
		if client := proxies.Client(r); !proxies.Trusts(Peer(r)) && client != Peer(r) {
			t.Errorf("%s, not a proxy in %v, is taken for %s", from, proxies, client)
		}
	})
}

// Any value that a handler would decode as the secret is masked, no matter how its member name is spelled. The output is always valid JSON.
func FuzzMaskedMemberSpelling(f *testing.F) {
	for _, text := range []string{`{"password":"p"}`, `{"PASSWORD":{"a":1}}`, `{"pa\u0073sword":[1]}`, `{"paſſword":1}`, `{"password":1,"password":2}`,
		`{"a":{"password":1},"password":null}`, `[{"password":1}]`, `{"\ud800":1,"password":1e400}`, `{"password"`, `{"a":"<&>\u2028"}`, `1`, ``} {
		f.Add([]byte(text))
	}
	mask, err := MaskOf("/password")
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		shown := mask.JSON(raw)
		if len(raw) > 0 && !json.Valid(shown) {
			t.Fatalf("%q is shown as %q", raw, shown)
		}
		var handler, reader struct{ Password json.RawMessage }
		if json.Unmarshal(raw, &handler) != nil || handler.Password == nil {
			return
		}
		if json.Unmarshal(shown, &reader); string(reader.Password) != Masked {
			t.Errorf("%q is shown as %q", raw, shown)
		}
		if again := mask.JSON(shown); !bytes.Equal(again, shown) {
			t.Errorf("%q becomes %q", shown, again)
		}
	})
}
