package api

import (
	"github.com/trapeze-run/trapeze/internal/access"
)

// Tokens are principals with a token each; Signed are principals with tokens that somebody else signs (JWT). Both have the methods
// Authenticate and Login for [Options].
type (
	Tokens = access.Tokens
	Signed = access.Signed
)

// Proxies are the addresses of proxies that are believed; their method Authenticate is for [Options]: it takes the principal from the
// headers X-Forwarded-User and X-Forwarded-Groups, which the proxy has to set or remove in every request.
type Proxies = access.Proxies

// ErrUnauthenticated is what an Authenticate of one's own returns for a request that does not say whose it is: nothing is logged then.
var ErrUnauthenticated = access.ErrUnauthenticated

// TokenFile reads a file of tokens, {"tokens":[{"token":"…","name":"ops","roles":["operator"]}]}, of 20 characters or more each. It is
// read again when it changes.
func TokenFile(path string) (*Tokens, error) { return access.TokenFile(path) }

// KeysFile reads a file of keys for signed tokens, whose form is in docs/reference.md. It is read again when it changes.
func KeysFile(path string) (*Signed, error) { return access.KeysFile(path) }

// TrustedProxies reads addresses and blocks of them, such as 10.1.0.0/16.
func TrustedProxies(list []string) (Proxies, error) { return access.ParseProxies(list) }
