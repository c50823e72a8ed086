package access

import (
	"crypto/sha256"
	"crypto/subtle"
	"errors"
	"fmt"
	"net/http"
	"path"
	"slices"
	"time"
)

// minToken is the minimum length of a token, in characters.
const minToken = 20

// Tokens authenticates each principal by a token in a file: {"tokens":[{"token":"…","name":"ops","roles":["operator"]}]}. An entry may
// contain the name of a client certificate instead of a token (see certificate.go). The file is reread when it changes, so a removed token
// and the sessions that it began are rejected within a second. The methods of Tokens are safe for concurrent use.
type Tokens struct {
	file *watchedFile[secrets]
}

// secrets holds the file's entries. Entries with certificates are kept separately, because only a token can begin a session.
type secrets struct {
	tokens       []token
	certificates map[string]Principal // keyed by the name in the certificate
}

// token is an entry in the file. Only a hash of the token is kept.
type token struct {
	hash [sha256.Size]byte
	who  Principal
}

// TokenFile reads a token file in the format described at [Tokens].
func TokenFile(path string) (*Tokens, error) {
	file, err := watch(path, parseTokens)
	if err != nil {
		return nil, fmt.Errorf("read tokens: %w", err)
	}
	return &Tokens{file: file}, nil
}

// Authenticate returns the sender of a request.
func (t *Tokens) Authenticate(r *http.Request) (Principal, error) {
	if leaf := certificateOf(r); leaf != nil {
		return t.principalOf(leaf, time.Now())
	}
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
	return found.who, nil
}

// find returns the entry for a token sent by a client. It always compares all tokens, so that its running time reveals nothing about them.
func (t *Tokens) find(given string) (token, error) {
	hash, found := sha256.Sum256([]byte(given)), -1
	all := t.file.get().tokens
	for i, entry := range all {
		if subtle.ConstantTimeCompare(hash[:], entry.hash[:]) == 1 {
			found = i
		}
	}
	if found < 0 {
		return token{}, fmt.Errorf("%w: unknown token", ErrUnauthenticated)
	}
	return all[found], nil
}

// entry is the JSON form of an entry in the file.
type entry struct {
	Token       string   `json:"token"`
	Certificate string   `json:"certificate"`
	Name        string   `json:"name"`
	Roles       []string `json:"roles"`
	Kinds       []string `json:"kinds"`
	Lanes       []string `json:"lanes"`
}

// parseTokens parses the file. The error reports all mistakes in the file without quoting a token.
func parseTokens(raw []byte) (all secrets, err error) {
	var file struct {
		Tokens []entry `json:"tokens"`
	}
	if err := decodeSecrets(raw, &file); err != nil {
		return all, fmt.Errorf(`want {"tokens":[{"token":"…","name":"…","roles":["…"]}]}: %w`, err)
	}
	var errs []error
	seen := map[[sha256.Size]byte]bool{}
	all.certificates = map[string]Principal{}
	for i, one := range file.Tokens {
		complain := func(err error) {
			if err != nil {
				errs = append(errs, fmt.Errorf("token %d: %w", i+1, err))
			}
		}
		who := Principal{Name: one.Name, Roles: one.Roles, Kinds: one.Kinds, Lanes: one.Lanes}
		complain(one.bounds())
		if err := who.Validate(); err != nil {
			complain(fmt.Errorf("name: %w", err))
		}
		if one.Certificate != "" {
			complain(one.certifies(all.certificates))
			all.certificates[one.Certificate] = who
			continue
		}
		hash := sha256.Sum256([]byte(one.Token))
		switch {
		case one.Token == "":
			complain(errors.New("want a token or a certificate"))
		case len([]rune(one.Token)) < minToken || len(one.Token) > maxToken:
			complain(fmt.Errorf("want %d characters to %d bytes", minToken, maxToken))
		case seen[hash]:
			complain(errors.New("listed twice"))
		}
		seen[hash] = true
		all.tokens = append(all.tokens, token{hash: hash, who: who})
	}
	return all, errors.Join(errs...)
}

// bounds validates the patterns that restrict a remote worker.
func (e entry) bounds() error {
	var errs []error
	for _, pattern := range append(slices.Clone(e.Kinds), e.Lanes...) {
		if _, err := path.Match(pattern, ""); err != nil || pattern == "" {
			errs = append(errs, fmt.Errorf("%q: want a name, or a pattern such as gpu.*", pattern))
		}
	}
	return errors.Join(errs...)
}
