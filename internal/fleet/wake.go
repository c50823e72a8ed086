package fleet

import (
	"encoding/json"
	"hash/fnv"
	"strconv"
	"strings"
	"sync"
	"time"
)

// Interval is the minimum time between two claims caused by notifications, and between two notifications of a sender. It merges a burst of
// notifications into a single claim.
const Interval = 40 * time.Millisecond

// Front is the number of pods that hear of new jobs. As many pods claim at once if jobs were left behind.
const Front = 8

const (
	atOnce = 2                // number of pods that claim new jobs at once
	step   = time.Millisecond // time between the later claims of two other pods
)

// Up is a notification that jobs may have become due.
type Up struct {
	Seed string    // chooses the pod that comes first
	Late Positions // low-water marks must not hide jobs there
	Left bool      // every pod hears it, because the pods that claim new jobs at once have left some behind
}

// ParseUp parses a notification: a seed, which may be followed by the result of [Late.Take]. Programs in other languages send empty payloads,
// for which the sender's process id serves as the seed.
func ParseUp(payload string, sender uint32, left bool) Up {
	seed, late, _ := strings.Cut(payload, " ")
	if seed == "" {
		seed = strconv.FormatUint(uint64(sender), 10)
	}
	u := Up{Seed: seed, Left: left}
	_ = json.Unmarshal([]byte(late), &u.Late) // most notifications have none
	return u
}

// Place is a pod's position among the pods with the same kinds. Pods is their number, or 0 if the position is unknown.
type Place struct{ Position, Pods int }

// InFront reports whether the pod must hear of new jobs, because it is in the front or its position is unknown.
func (at Place) InFront() bool { return at.Pods == 0 || at.Position < Front }

// rank returns how many of the pods that hear the notification come before the one at the given position.
func (u Up) rank(position, pods int) int {
	h := fnv.New64a()
	_, _ = h.Write([]byte(u.Seed))
	first := int(h.Sum64() % uint64(pods)) // #nosec G115 -- less than the number of pods
	return (position + pods - first) % pods
}

// Claiming holds the additional duties of a claim that is made because of notifications.
type Claiming struct {
	Escalates bool // notify all pods if jobs are left behind
	Promotes  bool // first make due jobs pending: the notification was about new jobs
}

// Turns decides when an engine claims. The zero value is ready to use. It is safe for concurrent use.
type Turns struct {
	mu     sync.Mutex
	at     Place
	due    time.Time // time of the planned claim; zero if none is planned
	as     Claiming  // the argument of the planned claim
	timer  *time.Timer
	latest time.Time // when the engine last claimed for a notification
	found  bool      // a claim has found jobs since
}

// InFront reports whether the engine must hear of new jobs.
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

// Found records that a claim has found jobs. The engine then claims the next jobs left behind without the delay that depends on the fleet's size.
func (t *Turns) Found() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.found = true
}

// Hear plans a call to claim for an engine that hears a notification. The first pods claim at once. The others claim a little later, in case the
// first cannot, but less often in a larger fleet. If always is set, the engine claims at once. If a call is already planned, only the earlier of
// the two takes place, and does what both would have done.
func (t *Turns) Hear(u Up, always bool, claim func(Claiming)) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !u.Left && !always && !t.at.InFront() {
		return // the pod hears of new jobs for another reason, such as a client that watches events
	}
	pods, first := t.at.Pods, Front
	if !u.Left {
		pods, first = min(pods, Front), atOnce
	}
	t.as.Promotes = t.as.Promotes || !u.Left
	due := t.latest.Add(Interval)
	if pods > first && t.at.Position < pods {
		rank := u.rank(t.at.Position, pods)
		t.as.Escalates = t.as.Escalates || !u.Left && rank == 0
		if rank >= first && !always {
			if !u.Left || !t.found {
				due = t.latest.Add(time.Duration(pods) * Interval) // together, these pods claim once per interval
			}
			if ranked := time.Now().Add(time.Duration(rank) * step); due.Before(ranked) {
				due = ranked
			}
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
		as := t.as
		t.due, t.as, t.latest, t.found = time.Time{}, Claiming{}, time.Now(), false
		t.mu.Unlock()
		claim(as)
	})
}
