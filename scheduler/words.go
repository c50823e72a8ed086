package scheduler

import (
	"fmt"
	"time"
)

func (e every) words(*time.Location) string { return "every " + e.interval.String() }

func (o once) words(zone *time.Location) string {
	return "once, on " + o.at.In(zone).Format("2006-01-02 at 15:04:05") + ", " + zone.String()
}

func (f fields) words(zone *time.Location) string { return fmt.Sprintf("%s, %s", f.text, zone) }
