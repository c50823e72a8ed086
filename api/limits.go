package api

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"math/rand/v2"
	"net/http"
	"net/netip"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/time/rate"

	"github.com/trapeze-run/trapeze/internal/access"
	"github.com/trapeze-run/trapeze/internal/store"
	"github.com/trapeze-run/trapeze/internal/store/admin"
	"github.com/trapeze-run/trapeze/internal/telemetry"
	"github.com/trapeze-run/trapeze/job"
)

// maxBuckets is the maximum number of callers with a separate bucket. All other callers share one bucket until some of the separate ones
// are full again.
const maxBuckets = 10_000

// buckets limits each caller to a rate, but allows a burst after idle time. It is safe for concurrent use.
type buckets struct {
	each  rate.Limit
	burst int

	mu     sync.Mutex
	of     map[string]*rate.Limiter
	others *rate.Limiter
}

// newBuckets returns buckets with the given rate. A negative rate means no limit.
func newBuckets(each float64, burst int) *buckets {
	limit := rate.Limit(each)
	if each < 0 {
		limit = rate.Inf
	}
	return &buckets{each: limit, burst: burst, of: map[string]*rate.Limiter{}, others: rate.NewLimiter(limit, burst)}
}

// reserve takes a token from a caller's bucket. If the bucket is empty, it returns how long the caller must wait.
func (b *buckets) reserve(who string) (wait time.Duration, ok bool) {
	if b.each == rate.Inf {
		return 0, true
	}
	now := time.Now()
	reservation := b.bucket(who, now).ReserveN(now, 1)
	if wait = reservation.DelayFrom(now); wait > 0 {
		reservation.CancelAt(now)
		return wait, false
	}
	return 0, true
}

func (b *buckets) bucket(who string, now time.Time) *rate.Limiter {
	b.mu.Lock()
	defer b.mu.Unlock()
	if found := b.of[who]; found != nil {
		return found
	}
	if len(b.of) >= maxBuckets {
		for key, limiter := range b.of {
			if limiter.TokensAt(now) >= float64(b.burst) {
				delete(b.of, key) // a full bucket is equivalent to a new one
			}
		}
	}
	if len(b.of) >= maxBuckets {
		return b.others
	}
	made := rate.NewLimiter(b.each, b.burst)
	b.of[who] = made
	return made
}

// neighbourhood returns the address block that the limits treat as one client. For IPv6, this is a /64 block.
func neighbourhood(client string) string {
	addr, err := netip.ParseAddr(client)
	if err != nil || addr.Is4() {
		return client
	}
	block, err := addr.Prefix(64)
	if err != nil {
		return client
	}
	return block.String()
}

// enforce returns an error if the caller's bucket is empty.
func (b *buckets) enforce(who string) error {
	if wait, ok := b.reserve(who); !ok {
		return tooMany("too many requests", wait)
	}
	return nil
}

func tooMany(message string, wait time.Duration) *problem {
	return &problem{Status: http.StatusTooManyRequests, Code: "rate_limited", Message: message,
		Detail: "try again after " + wait.Round(time.Millisecond).String(), RetryAfter: strconv.Itoa(int(math.Ceil(wait.Seconds())))}
}

// openStreams counts open streams. It is safe for concurrent use.
type openStreams struct {
	mu  sync.Mutex
	all int
	of  map[string]int
}

// enter registers a new stream, or returns an error if there are too many.
func (o *openStreams) enter(principal string, limit StreamOptions) (release func(), err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	later := strconv.Itoa(1 + rand.IntN(5)) // #nosec G404 -- jitter, so that clients do not all reconnect at once
	switch {
	case o.all >= limit.Most:
		return nil, &problem{Status: http.StatusServiceUnavailable, Code: "unavailable", Message: "this pod has reached its limit of streams", RetryAfter: later}
	case o.of[principal] >= limit.MostEach:
		return nil, &problem{Status: http.StatusTooManyRequests, Code: "rate_limited", Message: "you have reached your limit of streams", RetryAfter: later}
	}
	if o.of == nil {
		o.of = map[string]int{}
	}
	o.all++
	o.of[principal]++
	return func() {
		o.mu.Lock()
		defer o.mu.Unlock()
		o.all--
		if o.of[principal]--; o.of[principal] == 0 {
			delete(o.of, principal)
		}
	}, nil
}

// strangers counts, rate-limits and logs unauthenticated requests. Each address has a separate bucket for these requests, so that a flood
// does not lock out authenticated callers at the same address. It is safe for concurrent use, and its memory use is bounded (see
// [buckets]).
type strangers struct {
	challenge  string
	each       *buckets
	lines      *rate.Limiter // limits log lines
	suppressed atomic.Int64  // number of suppressed log lines
	tokens     *wrongTokens
	counted    *prometheus.CounterVec
}

func newStrangers(st *store.Store, o Options) *strangers {
	return &strangers{challenge: o.Challenge, tokens: newWrongTokens(st), each: newBuckets(o.ChangesPerSecond, o.ChangesBurst), lines: rate.NewLimiter(1, 10), counted: prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "trapeze_api_unauthenticated_total",
		Help: "Requests that failed authentication, by credentials: none, or wrong.",
	}, []string{"credentials"})}
}

// refuse returns a 401 for an unauthenticated request, or a 429 if too many have come from its address. err is the authentication error.
func (s *strangers) refuse(request *http.Request, from string, err error) *problem {
	kind := "none"
	if showsCredentials(request) {
		kind = "wrong"
		s.wrong(request, from, err)
	}
	s.counted.WithLabelValues(kind).Inc()
	if wait, ok := s.each.reserve(neighbourhood(from)); !ok {
		return tooMany("too many requests without valid credentials", wait)
	}
	detail := "send Authorization: Bearer with a valid token"
	if s.challenge != bearerChallenge {
		detail = "send the request through the proxy or service that signs callers in"
	}
	if errors.Is(err, access.ErrUnknownCertificate) {
		detail = err.Error()
	}
	return &problem{Status: http.StatusUnauthorized, Code: "unauthenticated", Message: "authentication required", Detail: detail, Refused: true}
}

// wrong logs and audits a request with wrong credentials.
func (s *strangers) wrong(request *http.Request, from string, err error) {
	s.log(request, from, err)
	s.tokens.add(from)
}

// log logs a request with wrong credentials. After a burst, it writes at most one line a second.
func (s *strangers) log(request *http.Request, from string, err error) {
	if !s.lines.Allow() {
		s.suppressed.Add(1)
		return
	}
	ctx := request.Context()
	attrs := []any{"source", from, "method", request.Method, "path", job.Storable(request.URL.EscapedPath(), 200), "request_id", job.OriginOf(ctx).RequestID, telemetry.Err, job.Storable(fmt.Sprint(err), 500)}
	if left := s.suppressed.Swap(0); left > 0 {
		attrs = append(attrs, "not_logged", left)
	}
	slog.WarnContext(ctx, "authentication failed", attrs...)
}

// showsCredentials reports whether a request carries credentials, valid or not.
func showsCredentials(request *http.Request) bool {
	_, err := request.Cookie(access.SessionCookie)
	return err == nil || request.Header.Get("Authorization") != "" || request.Header.Get("X-Forwarded-User") != "" ||
		request.TLS != nil && len(request.TLS.PeerCertificates) > 0
}

// wrongTokens audits requests with wrong credentials. It writes an entry for the first request immediately, and then one entry per interval
// with the number of further requests, so that a flood does not fill the table. It is safe for concurrent use.
type wrongTokens struct {
	store    *store.Store
	interval time.Duration

	mu      sync.Mutex
	running bool // the next entry is scheduled
	count   wrongCount
}

// wrongCount is the content of an audit entry about wrong credentials.
type wrongCount struct {
	Requests int64            `json:"requests"`
	From     map[string]int64 `json:"from"` // the number of requests from each address, for at most mostSources addresses
}

const mostSources = 20

func newWrongTokens(st *store.Store) *wrongTokens {
	return &wrongTokens{store: st, interval: time.Minute}
}

// add counts a request.
func (w *wrongTokens) add(from string) {
	w.mu.Lock()
	w.count.Requests++
	w.count.add(from, 1)
	first := !w.running
	w.running = true
	w.mu.Unlock()
	if first {
		w.write()
	}
}

// merge adds another count to c.
func (c *wrongCount) merge(other wrongCount) {
	c.Requests += other.Requests
	for from, n := range other.From {
		c.add(from, n)
	}
}

// add counts n requests from an address, if it is one of the first mostSources.
func (c *wrongCount) add(from string, n int64) {
	if c.From == nil {
		c.From = map[string]int64{}
	}
	if _, ok := c.From[from]; ok || len(c.From) < mostSources {
		c.From[from] += n
	}
}

// write audits the requests received since the last entry and schedules the next one. If there were none, it schedules nothing. If the
// entry cannot be written, the next one includes its requests.
func (w *wrongTokens) write() {
	w.mu.Lock()
	count := w.count
	w.count, w.running = wrongCount{}, count.Requests > 0
	w.mu.Unlock()
	if count.Requests == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	entry := admin.AuditEntry{Actor: "anonymous", Action: "authenticate", Target: "credentials", Refused: "unauthenticated: unknown, expired or forged credentials", After: count}
	if err := admin.Audit(ctx, w.store, entry); err != nil {
		slog.WarnContext(ctx, "wrong credentials not recorded in the audit log yet", telemetry.Count, count.Requests, telemetry.Err, err)
		w.mu.Lock()
		w.count.merge(count)
		w.mu.Unlock()
	}
	time.AfterFunc(w.interval, w.write)
}
