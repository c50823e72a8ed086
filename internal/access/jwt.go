package access

import (
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

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
