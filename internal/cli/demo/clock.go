package demo

import (
	"fmt"
	"sync"
	"time"
)

// span is the time during which a handler ran. If several jobs of a kind ran, it lasts from the first start to the last end.
type span struct{ began, ended time.Time }

// stopwatch records when each step ran, by this process's clock.
type stopwatch struct {
	mu  sync.Mutex
	ran map[string]span
}

func (s *stopwatch) note(kind string, began, ended time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if before, again := s.ran[kind]; again {
		if before.began.Before(began) {
			began = before.began
		}
		if before.ended.After(ended) {
			ended = before.ended
		}
	}
	s.ran[kind] = span{began, ended}
}

// steps returns the steps that ran, in order.
func (s *stopwatch) steps(submitted time.Time) (list []demoStep) {
	s.mu.Lock()
	defer s.mu.Unlock()
	before := submitted
	for _, step := range demoSteps {
		ran, ok := s.ran[step.kind]
		if !ok {
			continue
		}
		list = append(list, demoStep{step.kind, millis(ran.ended.Sub(ran.began)), millis(ran.began.Sub(before))})
		before = ran.ended
	}
	return list
}

// words describes how long a step took and how it was started.
func (s *stopwatch) words(kind string, submitted time.Time) string {
	for i, step := range s.steps(submitted) {
		switch {
		case step.Kind != kind:
		case i == 0:
			return fmt.Sprintf("%6.0f ms", step.MS)
		default:
			return fmt.Sprintf("%6.0f ms, %s %.1f ms", step.MS, transitionTo(kind), step.HandoffMS)
		}
	}
	return ""
}

// millis converts a duration to milliseconds, with microsecond resolution.
func millis(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }
