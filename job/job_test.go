package job

import (
	"errors"
	"fmt"
	"math"
	"testing"
	"time"

	"github.com/matryer/is"
)

func TestJobStateTransitions(t *testing.T) {
	is := is.New(t)
	for from, list := range moves {
		is.True(from == "" || from.Known())
		for _, to := range list {
			is.True(to.Known())
			is.True(CanMove(from, to))
			if from.Terminal() {
				is.True(to == Pending || to == Waiting || to == AwaitingApproval) // an operator's retry
			}
		}
	}
	is.Equal(len(States()), 7)
	for _, s := range States() {
		is.True(s.Known())
		is.True(!CanMove(s, ""))        // no state moves back to "not created"
		is.True(!CanMove(Succeeded, s)) // success is final
		is.Equal(s.Terminal(), s == Succeeded || s == Failed || s == Cancelled)
	}
	is.True(!State("finished").Known())
	is.True(!CanMove(Pending, Succeeded)) // a job must run before it can succeed
	is.True(!CanMove("", Succeeded))      // a job cannot be created as succeeded
	is.True(!CanMove(Waiting, Running))   // a join runs as a separate job
}

func TestBackoffDoublingAndCap(t *testing.T) {
	is := is.New(t)
	b := Backoff{Base: time.Second, Cap: time.Minute, Jitter: -1}
	for attempt, want := range map[int]time.Duration{-5: time.Second, 0: time.Second, 1: time.Second, 2: 2 * time.Second,
		6: 32 * time.Second, 7: time.Minute, 100: time.Minute, 1 << 30: time.Minute} {
		is.Equal(b.Wait(attempt, 0.99), want) // without jitter: min(cap, base · 2ⁿ⁻¹)
	}
	for attempt := 1; attempt <= 64; attempt++ {
		full := Backoff{Base: time.Second, Cap: time.Minute, Jitter: 0.5}
		most, least := full.Wait(attempt, 0), full.Wait(attempt, 0.999999)
		is.Equal(most, b.Wait(attempt, 0))
		is.True(least >= most/2 && least < most)                   // only the jitter fraction is random
		is.Equal(full.Wait(attempt, 0.3), full.Wait(attempt, 0.3)) // deterministic
		r := full.Random(attempt)
		is.True(r >= least && r <= most)
	}
	is.Equal(Backoff{}.Wait(1, 0), time.Second) // defaults
	is.Equal(Backoff{}.Wait(99, 0), 10*time.Minute)
	is.Equal(Backoff{Cap: math.MaxInt64}.Wait(999, 0), time.Duration(math.MaxInt64))
	is.Equal(Backoff{Jitter: 7}.Wait(1, 0.5), time.Second/2) // Jitter above 1 is treated as 1
}

func TestEndErrorText(t *testing.T) {
	is := is.New(t)
	is.Equal((&EndError{7, Failed, ReasonError, "torn\nwith a stack", ClassError, ""}).Error(), "job 7 ended failed (error): torn")
	is.Equal((&EndError{7, Cancelled, ReasonCancelled, "", "", ""}).Error(), "job 7 ended cancelled (cancelled)")
}

func TestTheOutermostWishCounts(t *testing.T) {
	is := is.New(t)
	base := errors.New("base")
	is.Equal(WishOf(nil), Wish{})
	is.Equal(WishOf(base), Wish{})
	is.Equal(WishOf(fmt.Errorf("around: %w", Permanent(base))), Wish{Permanent: true})
	is.Equal(WishOf(Permanent(Retryable(base))), Wish{Permanent: true})
	is.Equal(WishOf(Retryable(Permanent(base))), Wish{Retry: true})
	after := WishOf(RetryAfter(time.Minute, base))
	is.True(after.Retry && *after.After == time.Minute)
	for _, mark := range []func(error) error{Permanent, Retryable, func(err error) error { return RetryAfter(0, err) }} {
		is.Equal(mark(nil), nil)             // a nil error stays nil
		is.True(errors.Is(mark(base), base)) // the original error still matches
		is.Equal(mark(base).Error(), "base")
	}
}
