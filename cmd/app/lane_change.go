package app

import (
	"github.com/trapeze-run/trapeze/internal/cli"

	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/trapeze-run/trapeze/job"
)

// parseLaneChange parses settings such as slots=3. Each setting may occur only once.
func parseLaneChange(settings []string) (c job.LaneChange, err error) {
	limits := map[string]func(text string) error{
		"slots": number(&c.Slots), "slots_per_pod": number(&c.SlotsPerPod),
		"stale_after_s": seconds(&c.StaleAfter), "max_age_s": seconds(&c.MaxAge),
	}
	bools := map[string]**bool{"requires_approval": &c.RequiresApproval, "four_eyes": &c.FourEyes, "enabled": &c.Enabled}
	seen := map[string]bool{}
	for _, one := range settings {
		name, value, ok := strings.Cut(one, "=")
		if !ok {
			return c, cli.Usage("setting %q: want key=value, such as slots=3", one)
		}
		if seen[name] {
			return c, cli.Usage("setting %q given twice", name)
		}
		seen[name] = true
		limit, isLimit := limits[name]
		flag, isBool := bools[name]
		switch {
		case isLimit:
			err = limit(value)
		case isBool:
			*flag, err = parseBool(value)
		case name == "kinds":
			c.Kinds = parseKinds(value)
		default:
			err = fmt.Errorf("unknown setting; see trapeze lane set --help")
		}
		if err != nil {
			return c, cli.Usage("%s: %w", one, err)
		}
	}
	return c, nil
}

// number returns a parser that accepts a number, or "none".
func number(into *job.Limit[int]) func(text string) error {
	return func(text string) error {
		n, err := strconv.Atoi(text)
		switch {
		case text == "none":
			*into = job.NoLimit[int]()
		case err != nil:
			return fmt.Errorf("want a whole number, or none")
		default:
			*into = job.To(n)
		}
		return nil
	}
}

// seconds returns a parser that accepts a number of seconds, a duration, or "none".
func seconds(into *job.Limit[job.Seconds]) func(text string) error {
	return func(text string) error {
		n, err := strconv.ParseInt(text, 10, 32)
		d := time.Duration(n) * time.Second
		if err != nil {
			d, err = time.ParseDuration(text)
		}
		switch {
		case text == "none":
			*into = job.NoLimit[job.Seconds]()
		case err != nil || d%time.Second != 0:
			return fmt.Errorf("want a whole number, a duration in whole seconds, or none")
		default:
			*into = job.To(job.Seconds(d))
		}
		return nil
	}
}

func parseBool(text string) (*bool, error) {
	yes, err := strconv.ParseBool(text)
	if err != nil {
		return nil, fmt.Errorf("want true or false")
	}
	return &yes, nil
}

// parseKinds parses names separated by commas or plus signs. Empty text yields an empty list.
func parseKinds(text string) *[]string {
	kinds := strings.FieldsFunc(text, func(r rune) bool { return r == ',' || r == '+' })
	if kinds == nil {
		kinds = []string{}
	}
	return &kinds
}
