package access

import (
	"bytes"
	"errors"
	"fmt"
	"slices"

	"github.com/golang-jwt/jwt/v5"
)

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
