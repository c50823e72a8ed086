package fleet

import (
	"hash/fnv"
	"strconv"
	"strings"
	"sync"
	"time"
)

// Interval is the minimum time between two claims caused by notifications, and between two notifications sent by a process. It merges a
// burst of notifications into a single claim. RestInterval is the minimum time between two notifications that a process sends to the rest.
const (
	Interval     = 50 * time.Millisecond
	RestInterval = time.Second
)

// Front is the number of pods that hear every notification. It must be atOnce times a power of two, so that no notification is passed on to
// pods of both the front and the rest.
const Front = 8

const (
	atOnce  = 2                     // number of pods that claim immediately
	late    = 20 * time.Millisecond // time between two pods' late claims, which begin after one such time per pod with the same kinds
	busyFor = 2 * Interval          // how long an engine must be busy before it notifies the rest, so that short jobs do not count
)

// Up is a notification that jobs may have become due. The zero value begins a new one.
type Up struct {
	Seed string // chooses the pod that comes first
	Skip int    // number of pods, counting from the first, that have already claimed
}

// ParseUp parses a notification's payload. Programs in other languages and earlier releases send empty payloads, for which the sender's
// process id serves as the seed.
func ParseUp(payload string, sender uint32) Up {
	seed, skip, _ := strings.Cut(payload, "+")
	if seed == "" {
		seed = strconv.FormatUint(uint64(sender), 10)
	}
	n, _ := strconv.Atoi(skip) // 0 if there is none
	return Up{Seed: seed, Skip: max(n, 0)}
}

// Payload returns the payload for [Parse]. It is empty for a new notification, whose seed the database chooses.
func (u Up) Payload() string {
	if u.Skip == 0 {
		return u.Seed
	}
	return u.Seed + "+" + strconv.Itoa(u.Skip)
}

// ForRest reports whether the notification is meant only for pods outside the front.
func (u Up) ForRest() bool { return u.Skip >= Front }

// end returns how many pods will have claimed once the chosen pods have.
func (u Up) end() int { return max(atOnce, 2*u.Skip) }

// Place is a pod's position among the pods with the same kinds. Pods is their number, or 0 if the position is unknown.
type Place struct{ Position, Pods int }

// InFront reports whether the pod must hear every notification, because it is in the front or its position is unknown.
func (at Place) InFront() bool { return at.Pods == 0 || at.Position < Front }

// distance returns the number of pods whose turn comes before the given place's. The whole front comes before the rest.
func (u Up) distance(at Place) int {
	h := fnv.New64a()
	_, _ = h.Write([]byte(u.Seed))
	turned := func(position, pods int) int {
		first := int(h.Sum64() % uint64(pods)) // #nosec G115 -- less than the number of pods
		return ((position-first)%pods + pods) % pods
	}
	if front := min(Front, at.Pods); at.Position < front {
		return turned(at.Position, front)
	}
	return Front + turned(at.Position-Front, max(at.Pods-Front, 1))
}

// Turns decides when an engine claims. The zero value is ready to use. It is safe for concurrent use.
type Turns struct {
	mu     sync.Mutex
	at     Place
	due    time.Time // time of the planned claim; zero if none is planned
	timer  *time.Timer
	latest time.Time // when the engine last claimed for a notification
	heard  *Up       // the latest notification since the last claim
	turn   bool      // it was this engine's turn for the notification in heard
	busy   time.Time // since when every claim has left jobs behind; zero if the latest claim left none
}

// InFront reports whether the engine must hear every notification.
func (t *Turns) InFront() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.at.InFront()
}

// SetPlace sets the engine's place, as read by a heartbeat.
func (t *Turns) SetPlace(at Place) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.at = at
}

// Hear plans a call to claim: immediately if it is the engine's turn or always is set, and late otherwise. If a call is already planned,
// only the earlier of the two takes place.
func (t *Turns) Hear(u Up, always bool, claim func()) {
	t.mu.Lock()
	defer t.mu.Unlock()
	due := t.latest.Add(Interval)
	if t.at.Pods > 0 {
		d := u.distance(t.at)
		turn, passed := d >= u.Skip && d < u.end(), u.ForRest() && t.at.InFront() // the front has already claimed
		if passed && !always {
			return
		}
		if !passed && (turn || !t.turn) {
			t.heard, t.turn = &u, turn
		}
		if !turn && !always {
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
		if t.due != due { // an earlier claim has replaced this one in the meantime
			t.mu.Unlock()
			return
		}
		t.due, t.latest = time.Time{}, time.Now()
		t.mu.Unlock()
		claim()
	})
}

// Claimed records whether a claim left jobs behind that this engine cannot run now. If it is up to this engine to pass the notification on,
// Claimed returns the notification to send. A busy engine passes on only the first notification, so that a busy fleet does not notify
// itself endlessly. A busy engine in the front, however, keeps notifying the rest, which hears of new jobs only from the front.
func (t *Turns) Claimed(left bool) (next Up, ok bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	heard, turn, busy := t.heard, t.turn, t.busy
	t.heard, t.turn = nil, false
	switch {
	case !left:
		t.busy = time.Time{}
	case heard != nil && busy.IsZero():
		t.busy = time.Now()
	}
	switch {
	case !left || heard == nil:
		return Up{}, false
	case turn && busy.IsZero():
		next = Up{Seed: heard.Seed, Skip: heard.end()}
	case t.at.InFront() && !busy.IsZero() && time.Since(busy) >= busyFor:
		next = Up{Seed: heard.Seed, Skip: Front}
	default:
		return Up{}, false
	}
	return next, next.Skip < t.at.Pods
}
