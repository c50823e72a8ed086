package api

import (
	"math"
	"net/http"
	"strconv"
	"sync"
	"time"

	"github.com/labstack/echo/v4"
	"golang.org/x/time/rate"
)

// maxBuckets bounds who is told apart: when there are more, all who come then share what one may do, until some have rested.
const maxBuckets = 10_000

// buckets count what each of many may do: so many a second, and a burst after a rest. It is safe for concurrent use.
type buckets struct {
	each  rate.Limit
	burst int

	mu     sync.Mutex
	of     map[string]*rate.Limiter
	others *rate.Limiter
}

// newBuckets makes buckets; each below 0 is no limit.
func newBuckets(each float64, burst int) *buckets {
	limit := rate.Limit(each)
	if each < 0 {
		limit = rate.Inf
	}
	return &buckets{each: limit, burst: burst, of: map[string]*rate.Limiter{}, others: rate.NewLimiter(limit, burst)}
}

// take takes one from somebody's bucket. When it is empty, it says how long to wait.
func (b *buckets) take(who string) (wait time.Duration, ok bool) {
	if b.each == rate.Inf {
		return 0, true
	}
	now := time.Now()
	one := b.bucket(who, now).ReserveN(now, 1)
	if wait = one.DelayFrom(now); wait > 0 {
		one.CancelAt(now)
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
		for key, one := range b.of {
			if one.TokensAt(now) >= float64(b.burst) {
				delete(b.of, key) // a new one would be as full
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

// within refuses a request when the bucket of its sender is empty.
func within(c echo.Context, b *buckets, who string) error {
	wait, ok := b.take(who)
	if ok {
		return nil
	}
	c.Response().Header().Set("Retry-After", strconv.Itoa(int(math.Ceil(wait.Seconds()))))
	return &problem{status: http.StatusTooManyRequests, code: "rate_limited", message: "too many requests", detail: "try again after " + wait.Round(time.Millisecond).String()}
}
