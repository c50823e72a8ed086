// Package wake decides which pods claim after a notification, and when.
//
// PostgreSQL delivers a notification to every session that listens. If every pod claimed, a fleet of fifty would send fifty claims for each
// job. So each pod knows its position among the pods with the same kinds, and each notification carries a seed from which all pods compute
// whose turn it is:
//
//	two pods ──────────────────────▶ claim at once
//	└─ still jobs left? ───────────▶ notify the next two, which notify the next four, and so on
//	all others ────────────────────▶ claim 20 to 40 ms later for each pod of the fleet
//
// The late claims find jobs that the first two could not run, for example because these pods have just died. A notification remains a hint:
// if it is lost, the next poll finds the job.
package wake

import (
	"hash/fnv"
	"strconv"
	"strings"
	"sync"
	"time"
)

// Interval is the minimum time between two claims for notifications, and between two notifications that a process sends. It merges a burst of
// notifications into one claim.
const Interval = 50 * time.Millisecond

const (
	atOnce = 2                     // number of pods that claim at once
	late   = 20 * time.Millisecond // how long a late claim waits for each pod of the fleet, so that all pods together send at most 50 per second
)

// Up is a notification that jobs may have become due. The zero value begins a new one.
type Up struct {
	Seed string // chooses the pod that comes first
	Skip int    // number of pods, from the first one, that have already claimed
}

// Parse reads the payload of a notification. Payloads of programs in other languages and of earlier releases are empty, so the sender's
// process id replaces the seed.
func Parse(payload string, sender uint32) Up {
	seed, skip, _ := strings.Cut(payload, "+")
	if seed == "" {
		seed = strconv.FormatUint(uint64(sender), 10)
	}
	n, _ := strconv.Atoi(skip) // 0 if there is none
	return Up{Seed: seed, Skip: max(n, 0)}
}

// Payload returns the payload that [Parse] reads. It is empty for a new notification, for which the database chooses the seed.
func (u Up) Payload() string {
	if u.Skip == 0 {
		return u.Seed
	}
	return u.Seed + "+" + strconv.Itoa(u.Skip)
}

// end returns the number of pods that have claimed once the chosen pods have.
func (u Up) end() int { return max(atOnce, 2*u.Skip) }

// Place is the position of a pod among the pods with the same kinds. Pods is 0 if the position is unknown.
type Place struct{ Position, Pods int }

// distance returns the number of pods that come before the one at the given place.
func (u Up) distance(at Place) int {
	h := fnv.New64a()
	_, _ = h.Write([]byte(u.Seed))
	first := int(h.Sum64() % uint64(at.Pods)) // #nosec G115 -- less than the number of pods
	return ((at.Position-first)%at.Pods + at.Pods) % at.Pods
}

// Turns decides when one engine claims. The zero value is ready to use. It is safe for concurrent use.
type Turns struct {
	mu     sync.Mutex
	at     Place
	due    time.Time // when the planned claim happens; zero if none is planned
	timer  *time.Timer
	latest time.Time // when the engine last claimed for a notification
	onward *Up       // the notification for which this engine claims, until it is passed on
	busy   bool      // the latest notification was passed on, and every claim since then has left jobs behind
}

// SetPlace sets the engine's place, as read by a heartbeat.
func (t *Turns) SetPlace(at Place) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.at = at
}

// Hear plans a call of claim: at once if it is the engine's turn or always is set, otherwise late. If a call is already planned, only the
// earlier of the two happens.
func (t *Turns) Hear(u Up, always bool, claim func()) {
	t.mu.Lock()
	defer t.mu.Unlock()
	due := t.latest.Add(Interval)
	if t.at.Pods > 0 {
		d := u.distance(t.at)
		if d >= u.Skip && d < u.end() {
			t.onward = &u
		} else if !always {
			due = time.Now().Add(time.Duration(t.at.Pods+d) * late)
		}
	}
	if !t.due.IsZero() && !due.Before(t.due) {
		return
	}
	if t.timer != nil {
		t.timer.Stop()
	}
	t.due = due
	t.timer = time.AfterFunc(time.Until(due), func() {
		t.mu.Lock()
		if t.due != due { // replaced by an earlier claim while this function began
			t.mu.Unlock()
			return
		}
		t.due, t.latest = time.Time{}, time.Now()
		t.mu.Unlock()
		claim()
	})
}

// Claimed is called after a claim, with whether it left jobs behind that this engine cannot run now. It returns the notification to pass
// on, if it is this engine's task. A busy engine passes on only the first one, so that a busy fleet does not notify itself endlessly.
func (t *Turns) Claimed(left bool) (next Up, ok bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !left {
		t.onward, t.busy = nil, false
		return Up{}, false
	}
	if t.onward == nil || t.busy {
		return Up{}, false
	}
	next = Up{Seed: t.onward.Seed, Skip: t.onward.end()}
	t.onward, t.busy = nil, true
	return next, next.Skip < t.at.Pods
}
