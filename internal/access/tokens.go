package access

import (
	"bytes"
	"crypto/hmac"
	"crypto/sha256"
	"crypto/subtle"
	"crypto/x509"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net/http"
	"os"
	"path"
	"slices"
	"strings"
	"sync"
	"time"
)

// minToken is the minimum length of a token, in characters.
const minToken = 20

// Tokens authenticates each principal by a token in a file: {"tokens":[{"token":"…","name":"ops","roles":["operator"]}]}. An entry may
// contain the name of a client certificate instead of a token. The file is reread when it changes, so a removed token
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

// SessionCookie is the name of the cookie that holds a session in place of a token. Browsers see a longer name, which package api replaces
// with this one before it authenticates the request.
const SessionCookie = "trapeze_session"

// maxToken is the maximum length of a token, in bytes.
const maxToken = 8 << 10

// bearer returns the token in a request's Authorization header, or else the session in its cookie.
func bearer(r *http.Request) (token string, session bool, err error) {
	switch headers := r.Header.Values("Authorization"); {
	case len(headers) > 1:
		return "", false, fmt.Errorf("%w: several Authorization headers", ErrUnauthenticated)
	case len(headers) == 1:
		scheme, token, _ := strings.Cut(headers[0], " ")
		if !strings.EqualFold(scheme, "Bearer") || token == "" || len(token) > maxToken {
			return "", false, fmt.Errorf("%w: want Authorization: Bearer with a token", ErrUnauthenticated)
		}
		return token, false, nil
	}
	cookie, err := r.Cookie(SessionCookie)
	if err != nil || cookie.Value == "" || len(cookie.Value) > maxToken {
		return "", false, fmt.Errorf("%w: neither a token nor a session", ErrUnauthenticated)
	}
	return cookie.Value, true, nil
}

// sessionFor is the lifetime of a browser session.
const sessionFor = 12 * time.Hour

// A session contains an identifier of the token that began it, its expiry time, and an authentication code. The code's key is derived from
// the token. Every pod with the same token file accepts the session without storing it, and removing the token ends it. The format is:
//
//	version 1 byte · token 8 bytes · end 8 bytes, Unix seconds · code 32 bytes, HMAC-SHA-256 of everything before it
const (
	sessionVersion = 1
	sessionBytes   = 1 + 8 + 8 + sha256.Size
)

// Login starts a browser session for a token. It returns the cookie's value and the session's expiry time.
func (t *Tokens) Login(given string) (session string, until time.Time, err error) {
	found, err := t.find(given)
	if err != nil {
		return "", time.Time{}, err
	}
	until = time.Now().Add(sessionFor)
	raw := append([]byte{sessionVersion}, found.mark()...)
	raw = binary.BigEndian.AppendUint64(raw, uint64(until.Unix())) // #nosec G115 -- the time is after 1970
	return base64.RawURLEncoding.EncodeToString(append(raw, found.code(raw)...)), until, nil
}

// resume returns the token that began a session.
func (t *Tokens) resume(session string, now time.Time) (token, error) {
	raw, err := base64.RawURLEncoding.Strict().DecodeString(session)
	if err != nil || len(raw) != sessionBytes || raw[0] != sessionVersion {
		return token{}, fmt.Errorf("%w: invalid session", ErrUnauthenticated)
	}
	said, code := raw[:sessionBytes-sha256.Size], raw[sessionBytes-sha256.Size:]
	if int64(binary.BigEndian.Uint64(said[9:])) <= now.Unix() { // #nosec G115 -- a negative time counts as expired
		return token{}, fmt.Errorf("%w: the session has expired", ErrUnauthenticated)
	}
	for _, entry := range t.file.get().tokens {
		if hmac.Equal(entry.mark(), said[1:9]) && hmac.Equal(entry.code(said), code) {
			return entry, nil
		}
	}
	return token{}, fmt.Errorf("%w: invalid session, or its token was removed", ErrUnauthenticated)
}

// mark returns the identifier of a token in sessions.
func (t token) mark() []byte {
	sum := sha256.Sum256(append([]byte("trapeze session of "), t.hash[:]...))
	return sum[:8]
}

func (t token) code(said []byte) []byte {
	mac := hmac.New(sha256.New, append([]byte("trapeze session key "), t.hash[:]...))
	mac.Write(said)
	return mac.Sum(nil)
}

// ErrUnknownCertificate means that a request's client certificate is trusted, but has expired or has a name that is not in the file. The
// error text names the certificate and may be sent to the client.
var ErrUnknownCertificate = errors.New("unknown client certificate")

// maxCertificateName is the maximum length of a certificate name, in bytes.
const maxCertificateName = 500

// certifies validates a token file entry that contains a certificate name, such as
// {"certificate":"spiffe://example.org/gpu","name":"gpu","roles":["worker"]}. A name with "://" is matched against the URIs in the
// certificate's alternative names, and any other name against its common name.
func (e entry) certifies(before map[string]Principal) error {
	switch {
	case e.Token != "":
		return errors.New("want a token or a certificate, not both")
	case len(e.Certificate) > maxCertificateName || strings.TrimSpace(e.Certificate) != e.Certificate:
		return fmt.Errorf("certificate: want at most %d bytes without surrounding spaces", maxCertificateName)
	}
	if _, twice := before[e.Certificate]; twice {
		return fmt.Errorf("certificate %q is listed twice", e.Certificate)
	}
	return nil
}

// certificateOf returns the client certificate that authenticates a request, or nil. The handshake must have verified the certificate, and
// the request must have neither a token nor a session. A token identifies the sender more precisely than a certificate, which a machine
// presents to every server.
func certificateOf(r *http.Request) *x509.Certificate {
	if r.TLS == nil || len(r.TLS.VerifiedChains) == 0 || len(r.TLS.PeerCertificates) == 0 || len(r.Header.Values("Authorization")) > 0 {
		return nil
	}
	if _, err := r.Cookie(SessionCookie); err == nil {
		return nil
	}
	return r.TLS.PeerCertificates[0]
}

// principalOf returns a certificate's principal. It rechecks the expiry, because a connection may outlive its certificate.
func (t *Tokens) principalOf(leaf *x509.Certificate, now time.Time) (Principal, error) {
	names := namesOf(leaf)
	if now.After(leaf.NotAfter) {
		return Principal{}, fmt.Errorf("%w: the certificate of %q expired at %s", ErrUnknownCertificate, names, leaf.NotAfter.UTC().Format(time.RFC3339))
	}
	known := t.file.get().certificates
	for _, name := range names {
		if who, ok := known[name]; ok {
			return who, nil
		}
	}
	return Principal{}, fmt.Errorf("%w: no entry of the tokens file has the certificate %q", ErrUnknownCertificate, names)
}

// namesOf returns a certificate's names: its URIs, followed by its common name. It ignores a common name in the form of a URI.
func namesOf(leaf *x509.Certificate) (names []string) {
	for _, uri := range leaf.URIs {
		if text := uri.String(); strings.Contains(text, "://") {
			names = append(names, text)
		}
	}
	if name := leaf.Subject.CommonName; name != "" && !strings.Contains(name, "://") {
		names = append(names, name)
	}
	return names
}

// checkInterval is the minimum interval between checks of a file. A removed token can remain valid for that long.
const checkInterval = time.Second

// watchedFile is a file of secrets that is reread when it changes. If the new content is invalid, the error is logged and the last valid
// content stays in effect. It is safe for concurrent use.
type watchedFile[T any] struct {
	path  string
	parse func([]byte) (T, error)
	every time.Duration

	mu        sync.Mutex
	checkedAt time.Time
	seen      fs.FileInfo
	value     T
}

// watch reads a file for the first time, and returns an error if its content is invalid.
func watch[T any](path string, parse func([]byte) (T, error)) (*watchedFile[T], error) {
	w := &watchedFile[T]{path: path, parse: parse, every: checkInterval}
	if err := w.read(); err != nil {
		return nil, err
	}
	return w, nil
}

// get returns the file's latest valid content.
func (w *watchedFile[T]) get() T {
	w.mu.Lock()
	defer w.mu.Unlock()
	if time.Since(w.checkedAt) >= w.every {
		if err := w.read(); err != nil {
			slog.Error("invalid secrets file: the previous contents stay in use", "path", w.path, "err", err)
		}
	}
	return w.value
}

// read reads the file if it has changed. An invalid version is reported only once.
func (w *watchedFile[T]) read() error {
	w.checkedAt = time.Now()
	now, err := os.Stat(w.path)
	if err != nil {
		return err
	}
	if w.seen != nil && os.SameFile(now, w.seen) && now.ModTime().Equal(w.seen.ModTime()) && now.Size() == w.seen.Size() {
		return nil
	}
	raw, err := os.ReadFile(w.path)
	if err != nil {
		return err
	}
	w.seen = now
	value, err := w.parse(raw)
	if err != nil {
		return fmt.Errorf("%s: %w", w.path, err)
	}
	w.value = value
	return nil
}

// decodeSecrets decodes the JSON of a file of secrets into v. It rejects unknown fields, and quotes the name of one only if the name is too
// short for a secret.
func decodeSecrets(raw []byte, v any) error {
	decoder := json.NewDecoder(bytes.NewReader(raw))
	decoder.DisallowUnknownFields()
	err := decoder.Decode(v)
	if err == nil {
		return nil
	}
	if _, name, unknown := strings.Cut(err.Error(), "unknown field "); unknown && len(name) >= minToken {
		return errors.New("unknown field; its name is not shown, because it may be a secret")
	}
	return err
}
