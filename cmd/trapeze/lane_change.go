package main

import (
	"github.com/trapeze-run/trapeze/internal/cli/exit"

	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/trapeze-run/trapeze/job"
)

// parseLaneChange reads settings such as slots=3, each at most once.
func parseLaneChange(settings []string) (c job.LaneChange, err error) {
	numbers := map[string]struct {
		into *job.Limit
		unit time.Duration
	}{
		"slots": {&c.Slots, 0}, "slots_per_pod": {&c.SlotsPerPod, 0}, "poll_interval_ms": {&c.PollIntervalMS, time.Millisecond},
		"stale_after_s": {&c.StaleAfterS, time.Second}, "max_age_s": {&c.MaxAgeS, time.Second},
	}
	truths := map[string]**bool{"requires_approval": &c.RequiresApproval, "enabled": &c.Enabled}
	seen := map[string]bool{}
	for _, one := range settings {
		name, value, ok := strings.Cut(one, "=")
		if !ok {
			return c, exit.Usage("%q is no setting: want key=value, such as slots=3", one)
		}
		if seen[name] {
			return c, exit.Usage("%s is set twice", name)
		}
		seen[name] = true
		number, isNumber := numbers[name]
		truth, isTruth := truths[name]
		switch {
		case isNumber:
			*number.into, err = parseNumber(value, number.unit)
		case isTruth:
			*truth, err = parseTruth(value)
		case name == "kinds":
			c.Kinds = parseKinds(value)
		default:
			err = fmt.Errorf("there is no such setting: see trapeze lane set --help")
		}
		if err != nil {
			return c, exit.Usage("%s: %w", one, err)
		}
	}
	return c, nil
}

// parseNumber reads a number, none, or, where it counts units of time, a length of time.
func parseNumber(text string, unit time.Duration) (job.Limit, error) {
	if text == "none" {
		return job.NoLimit, nil
	}
	if n, err := strconv.Atoi(text); err == nil {
		return job.To(n), nil
	}
	if d, err := time.ParseDuration(text); unit > 0 && err == nil && d%unit == 0 {
		return job.To(int(d / unit)), nil
	}
	if unit > 0 {
		return job.Limit{}, fmt.Errorf("want a whole number, a length of time in whole %s, or none", map[time.Duration]string{time.Second: "seconds", time.Millisecond: "milliseconds"}[unit])
	}
	return job.Limit{}, fmt.Errorf("want a whole number, or none")
}

func parseTruth(text string) (*bool, error) {
	yes, err := strconv.ParseBool(text)
	if err != nil {
		return nil, fmt.Errorf("want true or false")
	}
	return &yes, nil
}

// parseKinds reads names separated by commas or plus signs; nothing is none.
func parseKinds(text string) *[]string {
	kinds := strings.FieldsFunc(text, func(r rune) bool { return r == ',' || r == '+' })
	if kinds == nil {
		kinds = []string{}
	}
	return &kinds
}
