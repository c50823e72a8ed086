package api

import (
	"cmp"
	"net/http"
	"time"

	"github.com/trapeze-run/trapeze/internal/access"
)

// Options configures [Mount]. Either Authenticate or InsecureAllowAll must be set; every other field may be zero.
type Options struct {
	// Authenticate returns the sender of a request. It may use the host's sessions, [TokenFile], [KeysFile] or [TrustedProxies]. If it
	// returns an error, the response is 401, or 429 after too many such requests. The error is logged if the request carries a token, a
	// session cookie of the dashboard, X-Forwarded-User or a client certificate.
	Authenticate func(*http.Request) (Principal, error)
	// Challenge is the WWW-Authenticate header of a 401, which names the scheme that Authenticate accepts. Default: Bearer.
	Challenge string
	// InsecureAllowAll gives every request all permissions if Authenticate is nil. It is meant for tests and for use behind a server that
	// controls access.
	InsecureAllowAll bool
	// Operator names the principal of every request under InsecureAllowAll. Default "api".
	Operator string
	// OnFailure receives the error behind each response with status 499 or above. The response does not contain this error. Default: the
	// error is only logged.
	OnFailure func(*http.Request, error)
	// Login starts a session for a browser that sends a token to /ui/login. It returns the value of the session cookie, which Authenticate
	// must accept, and the session's expiry time. Default: no login page, for use behind a proxy or with the host's sessions.
	Login func(token string) (session string, until time.Time, err error)
	// TrustedProxies lists the proxies whose X-Forwarded-For and X-Forwarded-Proto headers the API trusts. Default: none.
	TrustedProxies Proxies
	// MaxBodyBytes limits the size of a request body. Default 4 MiB, which is enough for a chain with several steps of up to 1 MiB of
	// arguments.
	MaxBodyBytes int64
	// Secrets lists values to hide in the arguments and results of all kinds from callers without the jobs:args permission. Each is a JSON
	// pointer, such as /password, in which * matches any member or element. Each kind may define more secrets, with the tag `secret:"true"`
	// on fields of its arguments or with runner.Secrets. For kinds that this pod does not know, all values are hidden.
	Secrets []string
	// ChangesPerSecond and ChangesBurst limit the requests that change something: ChangesPerSecond is the rate, and ChangesBurst the number
	// allowed in a burst after idle time. The limits apply per pod, separately to each principal and each client address. Defaults 1,000
	// and 5,000; a negative rate means no limit. Unauthenticated requests and calls from remote workers have separate limits of the same
	// size for each address, so that they do not use up the limits of authenticated callers.
	ChangesPerSecond float64
	ChangesBurst     int
	// LoopbackOnly rejects requests from other machines, and requests whose Host is neither localhost nor a loopback address. A web page
	// therefore cannot reach an unauthenticated API by making its host name resolve to 127.0.0.1.
	LoopbackOnly bool
	// Hosts lists additional host names that LoopbackOnly accepts, such as those that a proxy on this machine passes on.
	Hosts []string
	// Streams limits live streams.
	Streams StreamOptions
	// HSTS adds Strict-Transport-Security to responses over TLS, except for loopback host names. Browsers then use TLS for every port of
	// the host, including those of other services.
	HSTS bool

	open bool // requests are not authenticated; set by withDefaults
}

// StreamOptions limits live streams. The zero value uses the defaults.
type StreamOptions struct {
	// Most is the maximum number of streams on this pod. Further requests get 503. Default 10,000.
	Most int
	// MostEach is the maximum number of streams per principal. Further requests get 429. Default: Most.
	MostEach int
	// KeepAlive is the longest time that a stream stays silent. Default 15s, at most 25s. The reader's permission is re-checked every three
	// seconds.
	KeepAlive time.Duration
	// WriteWithin is the timeout of one write. A client that exceeds it is disconnected. Default 10s.
	WriteWithin time.Duration
}

func (o Options) withDefaults() Options {
	if o.open = o.Authenticate == nil; o.open {
		if !o.InsecureAllowAll {
			panic("api: no authentication: set Options.Authenticate, or InsecureAllowAll to accept every request")
		}
		o.Authenticate = o.allowAll
	}
	o.Challenge = cmp.Or(o.Challenge, bearerChallenge)
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

const bearerChallenge = `Bearer realm="trapeze"` // #nosec G101 -- the name of a scheme, not a credential

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
	o.KeepAlive = min(o.KeepAlive, 25*time.Second) // so that proxies do not close an idle stream
	if o.WriteWithin <= 0 {
		o.WriteWithin = 10 * time.Second
	}
	return o
}

// Principal is the sender of a request. Roles granted in the database are added to its own.
type Principal = access.Principal

// allowAll authenticates every request as one principal with all permissions.
func (o Options) allowAll(*http.Request) (Principal, error) {
	return Principal{Name: cmp.Or(o.Operator, access.Everyone), Roles: []string{access.PlatformAdmin}}, nil
}

// Tokens authenticates principals by secret tokens, and Signed by tokens that another party has signed (JWTs). Both provide the
// Authenticate and Login methods that [Options] needs.
type (
	Tokens = access.Tokens
	Signed = access.Signed
)

// Proxies lists the addresses of trusted proxies. Use its Authenticate method in [Options]. The method reads the principal from
// X-Forwarded-User and X-Forwarded-Groups, so the proxy must set or remove both headers in every request.
type Proxies = access.Proxies

// ErrUnauthenticated is the error that Authenticate returns for a request without credentials.
var ErrUnauthenticated = access.ErrUnauthenticated

// TokenFile reads a file of tokens in the format {"tokens":[{"token":"…","name":"ops","roles":["operator"]}]}. Each token must have at
// least 20 characters. The file is reread when it changes.
func TokenFile(path string) (*Tokens, error) { return access.TokenFile(path) }

// KeysFile reads a file of keys for signed tokens, as described in docs/reference.md. The file is reread when it changes.
func KeysFile(path string) (*Signed, error) { return access.KeysFile(path) }

// TrustedProxies parses addresses and address blocks, such as 10.1.0.0/16.
func TrustedProxies(list []string) (Proxies, error) { return access.ParseProxies(list) }
