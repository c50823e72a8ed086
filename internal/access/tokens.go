package access

import (
	"bytes"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"path"
	"slices"
	"time"
)

// minToken is the length of the shortest token, in characters.
const minToken = 20

// Tokens are principals with a token each, in a file: {"tokens":[{"token":"…","name":"ops","roles":["operator"]}]}. The file is
// read again when it changes: a token that is taken out of it is refused within a second, and the sessions that began with it. Its
// methods are safe for concurrent use.
type Tokens struct {
	file *watched[[]token]
}

// token is a line of the file; of the token itself only a hash is kept.
type token struct {
	hash  [sha256.Size]byte
	name  string
	roles []string
	kinds []string
	lanes []string
}

// TokenFile reads the file.
func TokenFile(path string) (*Tokens, error) {
	file, err := watch(path, parseTokens)
	if err != nil {
		return nil, fmt.Errorf("read tokens: %w", err)
	}
	return &Tokens{file: file}, nil
}

// Authenticate is an [Authenticator].
func (t *Tokens) Authenticate(r *http.Request) (Principal, error) {
	given, session, err := bearer(r)
	if err != nil {
		return Principal{}, err
	}
	found, err := t.find(given)
	if session {
		found, err = t.resume(given, time.Now())
	}
	if err != nil {
		return Principal{}, err
	}
	return Principal{Name: found.name, Roles: found.roles, Kinds: found.kinds, Lanes: found.lanes}, nil
}

// find finds a token by its hash. It looks at all of them, whichever it is: how long that takes tells nothing.
func (t *Tokens) find(given string) (token, error) {
	hash, found := sha256.Sum256([]byte(given)), -1
	all := t.file.get()
	for i, one := range all {
		if subtle.ConstantTimeCompare(hash[:], one.hash[:]) == 1 {
			found = i
		}
	}
	if found < 0 {
		return token{}, fmt.Errorf("%w: no such token", ErrUnauthenticated)
	}
	return all[found], nil
}

// parseTokens reads the file and reports everything that is wrong with it at once, without quoting a token.
func parseTokens(raw []byte) ([]token, error) {
	var file struct {
		Tokens []struct {
			Token string   `json:"token"`
			Name  string   `json:"name"`
			Roles []string `json:"roles"`
			Kinds []string `json:"kinds"`
			Lanes []string `json:"lanes"`
		} `json:"tokens"`
	}
	decoder := json.NewDecoder(bytes.NewReader(raw))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&file); err != nil {
		return nil, fmt.Errorf(`want {"tokens":[{"token":"…","name":"…","roles":["…"]}]}: %w`, err)
	}
	var (
		list []token
		errs []error
		seen = map[[sha256.Size]byte]bool{}
	)
	for i, one := range file.Tokens {
		hash := sha256.Sum256([]byte(one.Token))
		if len([]rune(one.Token)) < minToken || len(one.Token) > maxToken {
			errs = append(errs, fmt.Errorf("token %d: want %d characters or more", i+1, minToken))
		} else if seen[hash] {
			errs = append(errs, fmt.Errorf("token %d: it is in the file twice", i+1))
		}
		if err := (Principal{Name: one.Name}).Validate(); err != nil {
			errs = append(errs, fmt.Errorf("token %d: name: %w", i+1, err))
		}
		for _, pattern := range append(slices.Clone(one.Kinds), one.Lanes...) {
			if _, err := path.Match(pattern, ""); err != nil || pattern == "" {
				errs = append(errs, fmt.Errorf("token %d: %q is neither a name nor a pattern such as gpu.*", i+1, pattern))
			}
		}
		seen[hash] = true
		list = append(list, token{hash: hash, name: one.Name, roles: one.Roles, kinds: one.Kinds, lanes: one.Lanes})
	}
	return list, errors.Join(errs...)
}
