package api

import (
	"cmp"
	"net/http"
	"time"

	"github.com/trapeze-run/trapeze/internal/access"
)

// Options configure [Mount]. Set one of Authenticate and InsecureAllowAll; otherwise the zero value works.
type Options struct {
	// Authenticate returns the sender of a request: by the host's sessions, or by one of [TokenFile], [KeysFile] and [TrustedProxies]. An
	// error is answered with 401; only the log has its text.
	Authenticate func(*http.Request) (Principal, error)
	// InsecureAllowAll gives every request all permissions if Authenticate is nil: for tests, and behind a server that controls access.
	InsecureAllowAll bool
	// Operator names the principal of every request under InsecureAllowAll. Default "api".
	Operator string
	// OnFailure receives the error behind each answer of 499 or above, which the answer does not show. Default: it is only logged.
	OnFailure func(*http.Request, error)
	// Login starts the session of a browser that sends a token to /ui/login. It returns the value of the session cookie, which
	// Authenticate has to accept, and the end of the session. Default: no login page, as behind a proxy or with the host's sessions.
	Login func(token string) (session string, until time.Time, err error)
	// TrustedProxies are the proxies whose X-Forwarded-For and X-Forwarded-Proto are trusted. Default: none.
	TrustedProxies Proxies
	// MaxBodyBytes limits a request's body. Default 4 MiB, enough for arguments of 1 MiB and more of them in a chain.
	MaxBodyBytes int64
	// Secrets are hidden in the arguments and results of all kinds from callers without the permission jobs:args. They are JSON pointers
	// in which * stands for every member and every element, such as /password. They add to those of each kind, set by the tag
	// `secret:"true"` of its arguments' fields or by runner.Secrets. For kinds that this pod does not know, all values are hidden.
	Secrets []string
	// ChangesPerSecond and ChangesBurst limit the requests that change something, for each principal and for each client address: a rate,
	// plus a burst after idle time. Default 1,000 and 5,000; below 0: no limit. The limits apply to this pod. Unauthenticated requests and
	// calls of remote workers have separate limits of the same size for each address, so that they do not use up those of authenticated
	// callers.
	ChangesPerSecond float64
	ChangesBurst     int
	// LoopbackOnly rejects requests from other machines, and requests whose Host is neither localhost nor a loopback address. A web page
	// therefore cannot reach an API without permissions by resolving its own name to 127.0.0.1.
	LoopbackOnly bool
	// Hosts are further host names that LoopbackOnly accepts: those that a proxy on this machine passes on.
	Hosts []string
	// Streams limits the live streams.
	Streams StreamOptions
}

// StreamOptions limit live streams. The zero value works.
type StreamOptions struct {
	// Most is the maximum number of streams on this pod; further ones are answered with 503. Default 10,000.
	Most int
	// MostEach is the maximum for one principal; further ones are answered with 429. Default: Most.
	MostEach int
	// KeepAlive is the longest time without data on a stream. It is also half of the interval at which the reader's permission is checked
	// again. Default 15s, at most 25s.
	KeepAlive time.Duration
	// WriteWithin is the timeout of a write, after which the client is dropped. Default 10s.
	WriteWithin time.Duration
}

func (o Options) withDefaults() Options {
	if o.Authenticate == nil {
		if !o.InsecureAllowAll {
			panic("api: no authentication: set Options.Authenticate, or InsecureAllowAll to accept every request")
		}
		o.Authenticate = o.allowAll
	}
	if o.MaxBodyBytes <= 0 {
		o.MaxBodyBytes = 4 << 20
	}
	if o.ChangesPerSecond == 0 {
		o.ChangesPerSecond = 1000
	}
	if o.ChangesBurst <= 0 {
		o.ChangesBurst = 5000
	}
	o.Streams = o.Streams.withDefaults()
	return o
}

func (o StreamOptions) withDefaults() StreamOptions {
	if o.Most <= 0 {
		o.Most = 10_000
	}
	if o.MostEach <= 0 {
		o.MostEach = o.Most
	}
	if o.KeepAlive <= 0 {
		o.KeepAlive = 15 * time.Second
	}
	o.KeepAlive = min(o.KeepAlive, 25*time.Second) // a revoked permission takes effect within a minute
	if o.WriteWithin <= 0 {
		o.WriteWithin = 10 * time.Second
	}
	return o
}

// Principal is the sender of a request, with roles in addition to those of the table of grants.
type Principal = access.Principal

// allowAll authenticates every request as one principal with all permissions.
func (o Options) allowAll(*http.Request) (Principal, error) {
	return Principal{Name: cmp.Or(o.Operator, "api"), Roles: []string{access.PlatformAdmin}}, nil
}

// Tokens authenticates principals by a token each. Signed authenticates principals by tokens that another party signs (JWT). Both have the
// methods Authenticate and Login for [Options].
type (
	Tokens = access.Tokens
	Signed = access.Signed
)

// Proxies are the addresses of trusted proxies. Their method Authenticate is for [Options]: it takes the principal from the headers
// X-Forwarded-User and X-Forwarded-Groups, which the proxy has to set or remove in every request.
type Proxies = access.Proxies

// ErrUnauthenticated is the error of Authenticate for a request without credentials. It is not logged.
var ErrUnauthenticated = access.ErrUnauthenticated

// TokenFile reads a file of tokens, {"tokens":[{"token":"…","name":"ops","roles":["operator"]}]}, each of at least 20 characters. The file
// is read again when it changes.
func TokenFile(path string) (*Tokens, error) { return access.TokenFile(path) }

// KeysFile reads a file of keys for signed tokens, as described in docs/reference.md. The file is read again when it changes.
func KeysFile(path string) (*Signed, error) { return access.KeysFile(path) }

// TrustedProxies parses addresses and blocks of them, such as 10.1.0.0/16.
func TrustedProxies(list []string) (Proxies, error) { return access.ParseProxies(list) }
