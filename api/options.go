package api

import (
	"cmp"
	"net/http"
	"time"

	"github.com/trapeze-run/trapeze/internal/access"
)

// Options configure [Mount]. One of Authenticate and InsecureAllowAll is needed; otherwise the zero value works.
type Options struct {
	// Authenticate returns the sender of a request: by the host's own sessions, or by one of [TokenFile], [KeysFile] and
	// [TrustedProxies]. Its error is a 401; the text of it goes to the log only.
	Authenticate func(*http.Request) (Principal, error)
	// InsecureAllowAll lets every request do everything, when there is no Authenticate: for tests, and where something in front
	// decides who may come here.
	InsecureAllowAll bool
	// Operator names the principal of every request under InsecureAllowAll. Default "api".
	Operator string
	// OnFailure receives the error behind each answer of 499 or above, which the answer itself does not show. Default: it is only logged.
	OnFailure func(*http.Request, error)
	// Login begins the session of a browser that shows a token at /ui/login: it returns the value of its cookie, which Authenticate has
	// to accept, and when it ends. Default: there is no such page, as behind a proxy or with sessions of the host's own.
	Login func(token string) (session string, until time.Time, err error)
	// TrustedProxies are the proxies whose X-Forwarded-For and X-Forwarded-Proto name a request's origin. Default: none.
	TrustedProxies Proxies
	// MaxBodyBytes bounds a request's body. Default 4 MiB: arguments of 1 MiB, and more of them in a chain.
	MaxBodyBytes int64
	// Secrets are hidden in the arguments and results of all kinds from callers without the permission jobs:args: JSON pointers in which
	// * stands for every member and every element, such as /password. They add to those that the kinds name, by the tag
	// `secret:"true"` of their arguments' fields or by runner.Secrets; of kinds unknown to this pod, all values are hidden.
	Secrets []string
	// ChangesPerSecond and ChangesBurst bound the requests that change something, for each principal and for each client address: a
	// rate, and a burst after a rest. Default 1,000 and 5,000; below 0, there is no bound. They hold for
	// this pod. Unauthenticated requests, and such calls of remote workers, have separate limits of the same size for each address: they
	// do not use up those of authenticated callers.
	ChangesPerSecond float64
	ChangesBurst     int
	// LoopbackOnly refuses requests from other machines, and requests whose Host is neither localhost nor a loopback address, so that a web
	// page cannot reach an API without permissions by pointing its own name at 127.0.0.1.
	LoopbackOnly bool
	// Hosts are further names that LoopbackOnly lets through: those that a proxy on this machine passes on.
	Hosts []string
	// Streams bounds the live streams.
	Streams StreamOptions
}

// StreamOptions bound live streams. The zero value works.
type StreamOptions struct {
	// Most is the number of streams that this pod serves at once; one more is answered with 503. Default 10,000.
	Most int
	// MostEach is the number of them that one principal may have; one more is answered with 429. Default: Most.
	MostEach int
	// KeepAlive is the longest silence of a stream, and half of the interval at which its reader's permission is checked again.
	// Default 15s, at most 25s.
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
	o.KeepAlive = min(o.KeepAlive, 25*time.Second) // a permission taken back is noticed within a minute
	if o.WriteWithin <= 0 {
		o.WriteWithin = 10 * time.Second
	}
	return o
}

// Principal is the sender of a request, with the roles that add to those of the table of grants.
type Principal = access.Principal

// allowAll authenticates every request as one principal that may do everything.
func (o Options) allowAll(*http.Request) (Principal, error) {
	return Principal{Name: cmp.Or(o.Operator, "api"), Roles: []string{access.PlatformAdmin}}, nil
}

// Tokens are principals with a token each; Signed are principals with tokens that another party signs (JWT). Both have the methods
// Authenticate and Login for [Options].
type (
	Tokens = access.Tokens
	Signed = access.Signed
)

// Proxies are the addresses of trusted proxies; their method Authenticate is for [Options]: it takes the principal from the
// headers X-Forwarded-User and X-Forwarded-Groups, which the proxy has to set or remove in every request.
type Proxies = access.Proxies

// ErrUnauthenticated is the error that an Authenticate returns for a request without credentials: it is not logged.
var ErrUnauthenticated = access.ErrUnauthenticated

// TokenFile reads a file of tokens, {"tokens":[{"token":"…","name":"ops","roles":["operator"]}]}, of 20 characters or more each. It is
// read again when it changes.
func TokenFile(path string) (*Tokens, error) { return access.TokenFile(path) }

// KeysFile reads a file of keys for signed tokens, whose form is in docs/reference.md. It is read again when it changes.
func KeysFile(path string) (*Signed, error) { return access.KeysFile(path) }

// TrustedProxies reads addresses and blocks of them, such as 10.1.0.0/16.
func TrustedProxies(list []string) (Proxies, error) { return access.ParseProxies(list) }
