package access

import (
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
	"strings"
	"sync/atomic"
	"time"

	"github.com/go-jose/go-jose/v4"
)

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
