package scheduler

import (
	"regexp"
	"strings"
	"time"

	"github.com/robfig/cron/v3"
)

// fields is a [rule] that fires when a zone's wall clock shows a time that matches the cron fields.
type fields struct {
	text string // always six fields
	spec *cron.SpecSchedule
	zone *time.Location
}

var macros = map[string]string{
	"@hourly":   "0 * * * *",
	"@daily":    "0 0 * * *",
	"@midnight": "0 0 * * *",
	"@weekly":   "0 0 * * 0",
	"@monthly":  "0 0 1 * *",
	"@yearly":   "0 0 1 1 *",
	"@annually": "0 0 1 1 *",
}

// fieldNames holds the names and valid values of the six fields.
var fieldNames = [6]struct{ name, want string }{
	{"second", "0 to 59"},
	{"minute", "0 to 59"},
	{"hour", "0 to 23"},
	{"day of the month", "1 to 31"},
	{"month", "1 to 12, or jan to dec"},
	{"day of the week", "0 (sun) to 6 (sat), or the names"},
}

// element matches one element of a field's list. The check is needed because the cron parser is too lenient. It treats "*-5" as "*" and an
// empty list as never, and it accepts "+5". It also accepts any text before a space as a zone.
var element = regexp.MustCompile(`^([*?]|([0-9]{1,2}|[A-Za-z]{3})(-([0-9]{1,2}|[A-Za-z]{3}))?)(/[0-9]{1,2})?$`)

var parser = cron.NewParser(cron.Second | cron.Minute | cron.Hour | cron.Dom | cron.Month | cron.Dow)

func parseFields(text string, zone *time.Location) (rule, error) {
	if strings.HasPrefix(text, "@") {
		macro, known := macros[text]
		if !known {
			return nil, invalid(`unknown expression %q: want @hourly, @daily, @weekly, @monthly, @yearly, "@every 15m" or "@at 2027-01-31T03:00"`, text)
		}
		text = macro
	}
	parts := strings.Fields(text)
	if len(parts) == 5 {
		parts = append([]string{"0"}, parts...)
	}
	if len(parts) != 6 {
		return nil, invalid(`expression %q has %d fields: want five (minute, hour, day of the month, month, day of the week), such as `+
			`"30 2 * * *", or six, seconds first`, text, len(parts))
	}
	for i := range parts {
		if err := checkField(parts, i); err != nil {
			return nil, err
		}
	}
	text = strings.Join(parts, " ")
	schedule, err := parser.Parse(text)
	spec, ok := schedule.(*cron.SpecSchedule)
	if err != nil || !ok {
		return nil, invalid("expression %q: %v", text, err)
	}
	spec.Location = time.UTC
	return fields{text, spec, zone}, nil
}

// checkField checks a single field by parsing it with valid values for the others.
func checkField(parts []string, i int) error {
	alone := [6]string{"*", "*", "*", "*", "*", "*"}
	alone[i] = parts[i]
	ok := true
	for e := range strings.SplitSeq(parts[i], ",") {
		ok = ok && element.MatchString(e)
	}
	if ok {
		_, err := parser.Parse(strings.Join(alone[:], " "))
		ok = err == nil
	}
	if !ok {
		return invalid(`%s %q: want %s, as in %q, %q, %q or %q`, fieldNames[i].name, parts[i], fieldNames[i].want, "*", "5", "1-5", "1,3")
	}
	return nil
}

// next searches twice because the cron library gives up after five years.
func (f fields) next(after time.Time) time.Time {
	w := shown(after, f.zone)
	next := f.spec.Next(w)
	if next.IsZero() {
		next = f.spec.Next(w.AddDate(searchYears/2, 0, 0))
	}
	if next.IsZero() {
		return next
	}
	return moment(next, f.zone)
}
