package scheduler

import (
	"fmt"
	"strconv"
	"strings"
)

// star is the bit that the cron parser sets for a field given as *.
const star = 1 << 63

// members returns the numbers in one of the cron parser's bit sets, in ascending order.
func members(bits uint64) (list []int) {
	for n := range 60 {
		if bits&(1<<n) != 0 {
			list = append(list, n)
		}
	}
	return list
}

// spacing returns the interval between numbers that start at 0 and are evenly spaced around a clock with n positions. It returns 0 if they
// are not evenly spaced, or if there are fewer than two.
func spacing(set []int, n int) int {
	if len(set) < 2 || set[0] != 0 || n%len(set) != 0 {
		return 0
	}
	for i, v := range set {
		if v != i*n/len(set) {
			return 0
		}
	}
	return n / len(set)
}

// progression returns the interval between evenly spaced numbers. It returns 0 if they are not evenly spaced, or if there are fewer than
// four.
func progression(set []int) int {
	if len(set) < 4 {
		return 0
	}
	for i := range set[1:] {
		if set[i+1]-set[i] != set[1]-set[0] {
			return 0
		}
	}
	return set[1] - set[0]
}

// run reports whether set consists of two or more consecutive numbers.
func run(set []int) bool { return len(set) > 1 && set[len(set)-1]-set[0] == len(set)-1 }

// each returns "every minute" or "every 15 minutes".
func each(n int, unit string) string {
	if n == 1 {
		return "every " + unit
	}
	return fmt.Sprintf("every %d %ss", n, unit)
}

// field returns "every minute", "minute 5", or "minutes 5, 7 and 20 to 30".
func field(unit string, set []int, all int) string {
	switch d := progression(set); {
	case len(set) == all:
		return "every " + unit
	case len(set) == 1:
		return unit + " " + strconv.Itoa(set[0])
	case d > 1:
		return fmt.Sprintf("every %s %s from %d to %d", ordinal(d), unit, set[0], set[len(set)-1])
	}
	return unit + "s " + ranges(set, strconv.Itoa)
}

// ranges lists numbers as text. Three or more consecutive numbers are written as a range, such as "1 to 3".
func ranges(set []int, name func(int) string) string {
	parts := []string{}
	for i := 0; i < len(set); {
		end := i
		for end+1 < len(set) && set[end+1] == set[end]+1 {
			end++
		}
		if end-i < 2 {
			end = i
			parts = append(parts, name(set[i]))
		} else {
			parts = append(parts, name(set[i])+" to "+name(set[end]))
		}
		i = end + 1
	}
	return list(parts)
}

// list returns "a", "a and b", or "a, b and c".
func list(parts []string) string {
	if len(parts) == 1 {
		return parts[0]
	}
	last := len(parts) - 1
	return strings.Join(parts[:last], ", ") + " and " + parts[last]
}

func ordinal(n int) string {
	suffix := "th"
	switch {
	case n%100 >= 11 && n%100 <= 13:
	case n%10 == 1:
		suffix = "st"
	case n%10 == 2:
		suffix = "nd"
	case n%10 == 3:
		suffix = "rd"
	}
	return strconv.Itoa(n) + suffix
}
