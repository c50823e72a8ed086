package api

import (
	"math"
	"math/rand/v2"
	"net/http"
	"net/netip"
	"strconv"
	"sync"
	"time"

	"golang.org/x/time/rate"

	"github.com/trapeze-run/trapeze/api/internal/response"
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

func tooMany(message string, wait time.Duration) *response.Problem {
	return &response.Problem{Status: http.StatusTooManyRequests, Code: "rate_limited", Message: message,
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
		return nil, &response.Problem{Status: http.StatusServiceUnavailable, Code: "unavailable", Message: "this pod has reached its limit of streams", RetryAfter: later}
	case o.of[principal] >= limit.MostEach:
		return nil, &response.Problem{Status: http.StatusTooManyRequests, Code: "rate_limited", Message: "you have reached your limit of streams", RetryAfter: later}
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
