// Package wake decides which pods hear a notification, which of them claim, and when.
//
// PostgreSQL delivers a notification to every session that listens on its channel. If every pod heard it and claimed, a fleet of fifty would
// send fifty claims for each job. So each pod knows its position among the pods with the same kinds, and each notification carries a seed
// from which all pods compute whose turn it is:
//
//	the front, eight pods    two pods ──────────▶ claim at once
//	                         └─ still jobs left? ──▶ notify the next two, which notify the other four
//	                         the others ──────────▶ claim late
//	the rest                 └─ still jobs left? ──▶ notified on another channel: eight, then sixteen, and so on
//
// The late claims find jobs that the first pods could not run, for example because these pods have just died. A notification remains a hint:
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
// notifications into one claim. RestInterval is the minimum time between two notifications of the rest that a process sends.
const (
	Interval     = 50 * time.Millisecond
	RestInterval = time.Second
)

// Front is the number of pods that hear every notification. It must be atOnce times a power of two, because the notification that is passed
// on to the first pod of the rest must not concern the front.
const Front = 8

const (
	atOnce  = 2                     // number of pods that claim at once
	late    = 20 * time.Millisecond // the time between the late claims of two pods with the same kinds, which begin after one such time per pod
	busyFor = 2 * Interval          // how long an engine must have been busy before it notifies the rest, so that short jobs do not matter
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

// ForRest reports whether the notification is meant for pods outside the front only.
func (u Up) ForRest() bool { return u.Skip >= Front }

// end returns the number of pods that have claimed once the chosen pods have.
func (u Up) end() int { return max(atOnce, 2*u.Skip) }

// Place is the position of a pod among the pods with the same kinds. Pods is 0 if the position is unknown.
type Place struct{ Position, Pods int }

// InFront reports whether the pod must hear every notification. That is also so while its position is unknown.
func (at Place) InFront() bool { return at.Pods == 0 || at.Position < Front }

// distance returns the number of pods that come before the one at the given place. All pods of the front come before the rest.
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

// Turns decides when one engine claims. The zero value is ready to use. It is safe for concurrent use.
type Turns struct {
	mu     sync.Mutex
	at     Place
	due    time.Time // when the planned claim happens; zero if none is planned
	timer  *time.Timer
	latest time.Time // when the engine last claimed for a notification
	heard  *Up       // the latest notification since the last claim
	turn   bool      // it was this engine's turn to claim for the notification in heard
	busy   time.Time // since when every claim has left jobs behind; zero if the latest has not
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

// Hear plans a call of claim: at once if it is the engine's turn or always is set, otherwise late. If a call is already planned, only the
// earlier of the two happens.
func (t *Turns) Hear(u Up, always bool, claim func()) {
	t.mu.Lock()
	defer t.mu.Unlock()
	due := t.latest.Add(Interval)
	if t.at.Pods > 0 {
		d := u.distance(t.at)
		turn, passed := d >= u.Skip && d < u.end(), u.ForRest() && t.at.InFront() // the front has claimed for it
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
// on, if it is this engine's task. While an engine is busy, it passes on only the first one, so that a busy fleet does not notify itself
// endlessly. But in the front it keeps notifying the rest, which hears of new jobs only from the front.
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
