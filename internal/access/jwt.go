package access

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rsa"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/golang-jwt/jwt/v5"
)

// leeway is the maximum tolerated clock skew between the issuer and this machine.
const leeway = 30 * time.Second

// Signed authenticates principals by tokens that a third party has signed (JWTs). A file defines which tokens are trusted (see [KeysFile]).
// A token must contain an expiry time and the issuer and audience given in that file. It must be signed with one of the file's keys, using
// that key's algorithm. The methods of Signed are safe for concurrent use.
type Signed struct {
	file *watchedFile[*keys]
}

// KeysFile reads a file in this format:
//
//	{"issuer":"https://id.example.org","audience":"trapeze","name_claim":"sub","roles_claim":"roles",
//	 "keys":[{"kid":"2025-01","alg":"RS256","key":"-----BEGIN PUBLIC KEY-----\n…"}],"jwks":"https://id.example.org/certs"}
//
// name_claim and roles_claim are optional; the example shows their defaults. A name such as realm_access.roles refers to a member of the
// realm_access claim. The algorithms are RS256, ES256 and EdDSA with a public key in PEM, and HS256 with a secret of at least 32 bytes. A
// token without a kid is verified with the only key for its algorithm. The file is reread when it changes.
//
// jwks is the path or URL of a JSON Web Key Set, in addition to keys or instead of them. If a URL does not respond, KeysFile logs the
// error, and tokens are refused until it does.
func KeysFile(path string) (*Signed, error) {
	var latest *keySet // the file is read by one goroutine at a time
	file, err := watch(path, func(raw []byte) (*keys, error) {
		k, err := parseKeys(raw)
		if err != nil || k.set == nil {
			return k, err
		}
		switch {
		case latest == nil:
		case latest.name == k.set.name:
			k.set = latest // keep the keys that were read before
		case !k.set.remote:
			err = k.set.load()
		}
		if err == nil {
			latest = k.set
		}
		return k, err
	})
	if err != nil {
		return nil, fmt.Errorf("read the JWT keys: %w", err)
	}
	if set := file.get().set; set != nil && set.remote {
		set.renewed()
	} else if set != nil {
		if err := set.load(); err != nil {
			return nil, err
		}
	}
	return &Signed{file: file}, nil
}

// Authenticate returns the sender of a request.
func (s *Signed) Authenticate(r *http.Request) (Principal, error) {
	given, _, err := bearer(r)
	if err != nil {
		return Principal{}, err
	}
	p, _, err := s.verify(given)
	return p, err
}

// Login starts a browser session. The session is the token itself, and lasts until the token expires.
func (s *Signed) Login(given string) (session string, until time.Time, err error) {
	if len(given) > 3800 {
		return "", time.Time{}, fmt.Errorf("%w: the token is too long for a cookie", ErrUnauthenticated)
	}
	_, until, err = s.verify(given)
	return given, until, err
}

func (s *Signed) verify(given string) (Principal, time.Time, error) {
	refuse := func(err error) (Principal, time.Time, error) {
		return Principal{}, time.Time{}, fmt.Errorf("%w: %w", ErrUnauthenticated, err)
	}
	k := s.file.get()
	claims := jwt.MapClaims{}
	token, err := jwt.NewParser(jwt.WithValidMethods(algorithms), jwt.WithIssuer(k.Issuer), jwt.WithAudience(k.Audience),
		jwt.WithExpirationRequired(), jwt.WithIssuedAt(), jwt.WithLeeway(leeway), jwt.WithStrictDecoding()).
		ParseWithClaims(given, claims, k.find)
	if err != nil {
		return refuse(k.explain(err, token, claims))
	}
	until, err := claims.GetExpirationTime()
	if err != nil || until == nil {
		return refuse(jwt.ErrTokenRequiredClaimMissing)
	}
	name, ok := claimAt(claims, k.NameClaim).(string)
	if !ok || name == "" {
		return refuse(fmt.Errorf("the claim %s is not a name", k.NameClaim))
	}
	roles, err := roleNames(claimAt(claims, k.RolesClaim))
	if err != nil {
		return refuse(fmt.Errorf("the claim %s: %w", k.RolesClaim, err))
	}
	return Principal{Name: name, Roles: roles}, until.Time, nil
}

// explain adds to the error the information that an operator needs: the key that the token names, or the claim that was rejected. Claims
// are checked after the signature, so they are known to come from the issuer. The error contains neither the token nor its signature.
func (k *keys) explain(err error, token *jwt.Token, claims jwt.MapClaims) error {
	for _, one := range []struct {
		err         error
		claim, want string
	}{
		{jwt.ErrTokenInvalidIssuer, "iss", k.Issuer}, {jwt.ErrTokenInvalidAudience, "aud", k.Audience},
		{jwt.ErrTokenExpired, "exp", ""}, {jwt.ErrTokenNotValidYet, "nbf", ""}, {jwt.ErrTokenUsedBeforeIssued, "iat", ""},
	} {
		if value, ok := claims[one.claim]; errors.Is(err, one.err) && ok {
			detail := fmt.Sprintf("%s %.100q", one.claim, claimText(value))
			if one.want != "" {
				detail += fmt.Sprintf(", want %q", one.want)
			}
			return fmt.Errorf("%w (%s)", err, detail)
		}
	}
	if token == nil || token.Header == nil || errors.Is(err, jwt.ErrTokenInvalidClaims) {
		return err
	}
	return fmt.Errorf("%w (alg %.20q, kid %.100q)", err, fmt.Sprint(token.Header["alg"]), fmt.Sprint(token.Header["kid"]))
}

// claimText formats a claim. It formats numbers as times, because exp, nbf and iat are in seconds since 1970.
func claimText(value any) string {
	if seconds, ok := value.(float64); ok {
		return time.Unix(int64(seconds), 0).UTC().Format(time.RFC3339)
	}
	return fmt.Sprint(value)
}

// claimAt returns a claim by name. If no claim has that name, a dotted name such as realm_access.roles refers to a member of a claim.
func claimAt(claims map[string]any, name string) any {
	if value, ok := claims[name]; ok {
		return value
	}
	for i := range name {
		if inner, ok := claims[name[:i]].(map[string]any); ok && name[i] == '.' {
			if value := claimAt(inner, name[i+1:]); value != nil {
				return value
			}
		}
	}
	return nil
}

// roleNames reads role names from a claim, which is either a list of strings or a string of names separated by spaces. If the claim is
// missing, it returns no names.
func roleNames(claim any) (names []string, err error) {
	switch v := claim.(type) {
	case nil:
		return nil, nil
	case string:
		return strings.Fields(v), nil
	case []any:
		for _, one := range v {
			name, ok := one.(string)
			if !ok {
				return nil, fmt.Errorf("%v is not a string", one)
			}
			names = append(names, name)
		}
		return names, nil
	}
	return nil, fmt.Errorf("want a list of strings")
}

// algorithms lists the algorithms that a file may use. Tokens signed with any other algorithm are rejected.
var algorithms = []string{"RS256", "ES256", "EdDSA", "HS256"}

// keys is the content of a [KeysFile].
type keys struct {
	Issuer     string `json:"issuer"`
	Audience   string `json:"audience"`
	NameClaim  string `json:"name_claim"`
	RolesClaim string `json:"roles_claim"`
	Keys       []*key `json:"keys"`
	JWKS       string `json:"jwks"`

	set *keySet // the keys of JWKS, or nil
}

type key struct {
	ID        string `json:"kid"`
	Algorithm string `json:"alg"`
	Text      string `json:"key"`

	key any // the decoded key
}

func parseKeys(raw []byte) (*keys, error) {
	k := &keys{NameClaim: "sub", RolesClaim: "roles"}
	if err := decodeSecrets(raw, k); err != nil {
		return nil, fmt.Errorf(`want {"issuer":"…","audience":"…","keys":[{"kid":"…","alg":"…","key":"…"}]}: %w`, err)
	}
	var errs []error
	if k.Issuer == "" || k.Audience == "" || k.NameClaim == "" || k.RolesClaim == "" || len(k.Keys) == 0 && k.JWKS == "" {
		errs = append(errs, errors.New("want an issuer, an audience and at least one key or a jwks"))
	}
	if k.JWKS != "" {
		var err error
		if k.set, err = newKeySet(k.JWKS); err != nil {
			errs = append(errs, err)
		}
	}
	seen := map[string]bool{}
	for i, key := range k.Keys {
		if key == nil {
			errs = append(errs, fmt.Errorf("key %d is null", i+1))
			continue
		}
		if err := key.parse(); err != nil {
			errs = append(errs, fmt.Errorf("key %d: %w", i+1, err))
		}
		if seen[key.ID] {
			errs = append(errs, fmt.Errorf("key %d: duplicate kid %q", i+1, key.ID))
		}
		seen[key.ID] = true
	}
	return k, errors.Join(errs...)
}

// parse decodes the key for its algorithm.
func (k *key) parse() (err error) {
	pem := []byte(k.Text)
	switch k.Algorithm {
	case "RS256":
		k.key, err = jwt.ParseRSAPublicKeyFromPEM(pem)
	case "ES256":
		k.key, err = jwt.ParseECPublicKeyFromPEM(pem)
	case "EdDSA":
		k.key, err = jwt.ParseEdPublicKeyFromPEM(pem)
	case "HS256":
		if k.key = pem; len(pem) < 32 || bytes.Contains(pem, []byte("-----BEGIN")) {
			err = errors.New("want a secret of at least 32 bytes that is not a PEM key")
		}
		return err
	default:
		return fmt.Errorf("alg %q: want one of %v", k.Algorithm, algorithms)
	}
	if err == nil {
		_, err = algorithmOf(k.key)
	}
	return err
}

// errUnknownKey means that no key matches the kid and algorithm of a token.
var errUnknownKey = errors.New("no key matches the token's kid and algorithm")

// find returns the key that a token names. If the key is unknown, find rereads the key set, because the provider may have added the key
// since.
func (k *keys) find(t *jwt.Token) (any, error) {
	if _, ok := t.Header["crit"]; ok { // the library ignores crit, but RFC 7515 requires tokens with unknown extensions to be rejected
		return nil, errors.New("the token has critical extensions (crit), which are not supported")
	}
	if k.set == nil {
		return pick(k.Keys, t)
	}
	found, err := pick(slices.Concat(k.Keys, k.set.current()), t)
	if errors.Is(err, errUnknownKey) {
		found, err = pick(slices.Concat(k.Keys, k.set.renewed()), t)
	}
	return found, err
}

// pick returns the key that a token names or, if it names none, the only key for the token's algorithm. A token must be signed with the
// key's algorithm. If the token could choose the algorithm, an attacker could sign a token with HMAC, using a public key as the secret.
func pick(keys []*key, t *jwt.Token) (any, error) {
	id, named := t.Header["kid"].(string)
	var found *key
	for _, one := range keys {
		switch {
		case one.Algorithm != t.Method.Alg() || named && one.ID != id:
		case named:
			return one.key, nil
		case found != nil:
			return nil, errors.New("the token has no kid, and several keys have its algorithm")
		default:
			found = one
		}
	}
	if found == nil {
		return nil, errUnknownKey
	}
	return found.key, nil
}

// A key set may have at most maxKeySet bytes and maxKeys keys. keySetTimeout limits each read, and keySetWait limits how long a caller
// waits for another caller's read.
const (
	maxKeySet     = 1 << 20
	maxKeys       = 100
	keySetTimeout = 5 * time.Second
	keySetWait    = time.Second
)

// keySet holds an identity provider's public keys, read from a JSON Web Key Set (RFC 7517) in a file or at a URL. The set is reread when it
// is older than fresh or when a token names an unknown key, but at most once per interval. If a read fails, the previous keys stay in use.
// It is safe for concurrent use.
type keySet struct {
	name     string // the path or URL, for error messages
	remote   bool
	read     func() ([]byte, error)
	fresh    time.Duration
	interval time.Duration

	latest  atomic.Pointer[readKeys]
	reading chan struct{} // full during a read
	tried   time.Time     // when the last read began; guarded by reading
}

type readKeys struct {
	keys []*key
	at   time.Time
}

// newKeySet returns the key set at a path or URL, without reading it.
func newKeySet(source string) (*keySet, error) {
	s := &keySet{name: source, fresh: checkInterval, interval: checkInterval, read: func() ([]byte, error) { return readFile(source) }, reading: make(chan struct{}, 1)}
	s.latest.Store(&readKeys{})
	if !strings.Contains(source, "://") {
		return s, nil
	}
	at, err := url.Parse(source)
	if err != nil {
		return nil, fmt.Errorf("jwks: %w", err)
	}
	if at.Host == "" || at.User != nil || at.Scheme != "https" && !(at.Scheme == "http" && loopbackHost(at.Hostname())) {
		return nil, fmt.Errorf("jwks %q: want a path or an https URL without a password; http is allowed only for a loopback address", at.Redacted())
	}
	client := &http.Client{Timeout: keySetTimeout, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	s.remote, s.fresh, s.interval = true, 15*time.Minute, 30*time.Second
	s.read = func() ([]byte, error) { return fetch(client, source) }
	return s, nil
}

// loopbackHost reports whether the host in a URL is this machine's loopback interface.
func loopbackHost(host string) bool {
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}

func readFile(path string) ([]byte, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	return limited(file)
}

func fetch(client *http.Client, from string) ([]byte, error) {
	response, err := client.Get(from)
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK { // redirects are not followed
		return nil, fmt.Errorf("status %d", response.StatusCode)
	}
	return limited(response.Body)
}

func limited(from io.Reader) ([]byte, error) {
	raw, err := io.ReadAll(io.LimitReader(from, maxKeySet+1))
	if err == nil && len(raw) > maxKeySet {
		err = fmt.Errorf("larger than %d bytes", maxKeySet)
	}
	return raw, err
}

// current returns the keys. If they are stale, one caller rereads the set while concurrent callers get the previous keys.
func (s *keySet) current() []*key {
	set := s.latest.Load()
	if time.Since(set.at) < s.fresh || !s.begin(0) {
		return set.keys
	}
	return s.update()
}

// renewed returns the keys after a token has named an unknown key, which the provider may have added since the last read. It waits only
// briefly for another caller's read, because anyone can send tokens that name unknown keys.
func (s *keySet) renewed() []*key {
	if !s.begin(keySetWait) {
		return s.latest.Load().keys
	}
	return s.update()
}

// begin reports whether the caller may read the set. It waits at most the given time for another caller's read.
func (s *keySet) begin(wait time.Duration) bool {
	select {
	case s.reading <- struct{}{}:
		return true
	default:
	}
	if wait == 0 {
		return false
	}
	select {
	case s.reading <- struct{}{}:
		return true
	case <-time.After(wait):
		return false
	}
}

// update returns the keys after rereading the set, unless the last read began within the interval. The caller must have called begin.
func (s *keySet) update() []*key {
	defer func() { <-s.reading }()
	if time.Since(s.tried) >= s.interval {
		if err := s.load(); err != nil {
			slog.Error("JWKS not read: the previous keys stay in use", "path", s.name, "err", err)
		}
	}
	return s.latest.Load().keys
}

func (s *keySet) load() error {
	s.tried = time.Now()
	raw, err := s.read()
	if err != nil {
		return fmt.Errorf("jwks %s: %w", s.name, err)
	}
	keys, err := parseKeySet(raw)
	if err != nil {
		return fmt.Errorf("jwks %s: %w", s.name, err)
	}
	s.latest.Store(&readKeys{keys, s.tried})
	return nil
}

// parseKeySet returns the usable keys in a set. As RFC 7517 requires, it skips all other keys: encryption keys, private and symmetric keys,
// and keys for unsupported algorithms.
func parseKeySet(raw []byte) (keys []*key, err error) {
	var set struct {
		Keys []json.RawMessage `json:"keys"`
	}
	if err := json.Unmarshal(raw, &set); err != nil {
		return nil, fmt.Errorf(`want {"keys":[…]}: %w`, err)
	}
	if len(set.Keys) > maxKeys {
		return nil, fmt.Errorf("more than %d keys", maxKeys)
	}
	for _, text := range set.Keys {
		var one jose.JSONWebKey
		if one.UnmarshalJSON(text) != nil || !one.Valid() || one.Use != "" && one.Use != "sig" {
			continue
		}
		if algorithm, err := algorithmOf(one.Key); err == nil && (one.Algorithm == "" || one.Algorithm == algorithm) {
			keys = append(keys, &key{ID: one.KeyID, Algorithm: algorithm, key: one.Key})
		}
	}
	if len(keys) == 0 {
		return nil, errors.New("no usable key: want public keys for RS256, ES256 or EdDSA")
	}
	return keys, nil
}

// algorithmOf returns the algorithm for a public key. It returns an error if the key is too weak or its type is unsupported.
func algorithmOf(public any) (string, error) {
	switch public := public.(type) {
	case *rsa.PublicKey:
		if public.N.BitLen() < 2048 {
			return "", errors.New("want at least 2048 bits")
		}
		return "RS256", nil
	case *ecdsa.PublicKey:
		if public.Curve != elliptic.P256() {
			return "", errors.New("want a P-256 key")
		}
		return "ES256", nil
	case ed25519.PublicKey:
		return "EdDSA", nil
	}
	return "", errors.New("want a public key")
}
