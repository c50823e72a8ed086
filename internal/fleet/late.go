package fleet

import (
	"encoding/json"
	"sync"
	"time"
)

// Positions holds the earliest ready times of jobs by lane and priority.
type Positions map[string]map[int]time.Time

// Late collects the positions of jobs that have become pending with a ready time in the past, such as the next jobs of subjects and recovered
// jobs. The next notification carries them, because the low-water marks of other pods may hide such jobs. The zero value is ready to use. It
// is safe for concurrent use.
type Late struct {
	mu sync.Mutex
	at Positions
}

// maxLate is the maximum length of positions in a notification. PostgreSQL limits its payload to 8,000 bytes.
const maxLate = 7900

// Add adds the position of a job.
func (l *Late) Add(lane string, priority int, readyAt time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.at == nil {
		l.at = Positions{}
	}
	if l.at[lane] == nil {
		l.at[lane] = map[int]time.Time{}
	}
	if before, ok := l.at[lane][priority]; !ok || readyAt.Before(before) {
		l.at[lane][priority] = readyAt
	}
}

// AddAll adds positions.
func (l *Late) AddAll(at Positions) {
	for lane, positions := range at {
		for priority, readyAt := range positions {
			l.Add(lane, priority, readyAt)
		}
	}
}

// Take removes the positions and returns them for [ParseUp]. It returns no text if there are none, or too many for a notification: marks then hide
// the jobs until they expire.
func (l *Late) Take() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	at := l.at
	l.at = nil
	if text, err := json.Marshal(at); err == nil && at != nil && len(text) <= maxLate {
		return " " + string(text)
	}
	return ""
}
