package ui

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/trapeze-run/trapeze/internal/access"
	"github.com/trapeze-run/trapeze/internal/cursor"
	"github.com/trapeze-run/trapeze/job"
)

// Calendar knows the schedules: a runner does.
type Calendar interface {
	// Schedules lists the schedules by name.
	Schedules(ctx context.Context) ([]job.ScheduleUse, error)
	// ScheduleByName reads one: [job.ErrUnknownSchedule].
	ScheduleByName(ctx context.Context, name string) (job.ScheduleUse, error)
	// ScheduleFiresBefore lists the fires of a schedule before a moment, newest first; the zero moment is no bound.
	ScheduleFiresBefore(ctx context.Context, name string, before time.Time, limit int) ([]job.Fire, error)
}

// schedule is a schedule as pages show it.
type schedule struct {
	job.ScheduleUse
	Now time.Time
}

// overdueAfter is how late a fire may be decided before it is said: a few heartbeats.
const overdueAfter = 10 * time.Second

// State is how the schedule is, in a word.
func (s schedule) State() string {
	switch {
	case s.Error != "":
		return "error"
	case s.Paused:
		return "paused"
	case s.Overdue():
		return "late"
	case s.NextAt == nil && strings.HasPrefix(s.Expression, "@at"):
		return "over"
	case s.NextAt == nil:
		return "being planned"
	}
	return "on"
}

// Overdue reports whether nobody has decided a fire whose time has come.
func (s schedule) Overdue() bool {
	return s.NextAt != nil && !s.Paused && s.Now.Sub(*s.NextAt) > overdueAfter
}

// ZoneUnsaid reports whether the words do not name the zone.
func (s schedule) ZoneUnsaid() bool { return !strings.HasSuffix(s.Words, s.Zone) }

// Last is the latest fire; nil: there was none.
func (s schedule) Last() *job.Fire {
	if len(s.LastFires) == 0 {
		return nil
	}
	return &s.LastFires[0]
}

// Moment is a moment with the time that the clocks of the schedule's zone show then.
func (s schedule) Moment(t *time.Time) moment {
	m := ago(s.Now, t)
	if t != nil {
		m.Full = s.Local(*t) + " (" + m.Full + ")"
	}
	return m
}

// missedWords says what becomes of missed fires.
func missedWords(s job.ScheduleSetting) string {
	switch s.Missed {
	case job.MissedCatchUp:
		return fmt.Sprintf("one job for each of the latest %s", number(s.CatchUp))
	case job.MissedSkip:
		return "no job"
	}
	return "one job for all of them"
}

// Local is a moment as the clocks of the schedule's zone show it.
func (s schedule) Local(t time.Time) string { return inZone(s.Zone, t) }

// inZone is a moment as the clocks of a zone show it, with the zone's name of that time of the year.
func inZone(zone string, t time.Time) string {
	place, err := time.LoadLocation(zone)
	if err != nil {
		place = time.UTC
	}
	return t.In(place).Format("Mon 2 Jan 2006, 15:04:05 MST")
}

// scheduleList is what the page of all schedules shows.
type scheduleList struct {
	Schedules []schedule
	Lane      string              // of a new one
	New       job.ScheduleSetting // how a new one is unless its form says otherwise
	scheduleChoices
}

// scheduleChoices are what a form for a schedule offers.
type scheduleChoices struct {
	Kinds []string // that the pods have handlers of
	Lanes []string
}

func (d *dashboard) scheduleChoices(r *http.Request) (c scheduleChoices, err error) {
	b, err := d.readBoard(r)
	for _, l := range b.Lanes {
		c.Lanes = append(c.Lanes, l.Name)
	}
	for _, p := range b.Pods {
		if p.ClosedAt == nil {
			c.Kinds = append(c.Kinds, p.Kinds...)
		}
	}
	slices.Sort(c.Kinds)
	c.Kinds = slices.Compact(c.Kinds)
	return c, err
}

// schedules lists the schedules.
func (d *dashboard) schedules(p *page, r *http.Request) error {
	found, err := d.calendar.get(r.Context(), r.Header.Get("X-Anew") != "", d.o.Calendar.Schedules)
	if err != nil {
		return err
	}
	show := scheduleList{New: job.DefaultSchedule()}
	for _, one := range found {
		show.Schedules = append(show.Schedules, schedule{one, p.Now})
	}
	if p.Can(string(access.SchedulesManage)) {
		show.scheduleChoices, err = d.scheduleChoices(r)
	}
	p.Title, p.Live, p.Data = "Schedules", "events/stream", show
	return err
}

// schedulePage is what the page of a schedule shows.
type schedulePage struct {
	schedule
	scheduleChoices
	Fires   []job.Fire
	Next    string // the address of the page with the fires before those; empty: there is none
	Later   bool   // it is not the first page
	Actions []action
	Args    string // for the form; empty: what they are is not to be seen
	AsksFor string // the path of the form's request
}

// schedule shows one schedule.
func (d *dashboard) schedule(p *page, r *http.Request) error {
	name := r.PathValue("name")
	if job.ValidateScheduleName(name) != nil {
		return job.ErrUnknownSchedule
	}
	before, err := cursor.Opened("fires", r.URL.Query().Get("cursor"))
	if err != nil {
		return invalid("cursor", r.URL.Query().Get("cursor"), "the cursor of the previous page")
	}
	from := time.Time{}
	if before != "" {
		if from, err = time.Parse(time.RFC3339Nano, before); err != nil {
			return invalid("cursor", before, "the cursor of the previous page")
		}
	}
	one, err := d.o.Calendar.ScheduleByName(r.Context(), name)
	if err != nil {
		return err
	}
	show := schedulePage{schedule: schedule{one, p.Now}, Later: before != "", AsksFor: "admin/workers/schedules/" + name}
	if show.Fires, err = d.o.Calendar.ScheduleFiresBefore(r.Context(), name, from, perPage); err != nil {
		return err
	}
	if len(show.Fires) == perPage {
		show.Next = "schedules/" + name + "?cursor=" + cursor.Sealed("fires", show.Fires[perPage-1].FireAt.Format(time.RFC3339Nano))
	}
	if p.Can(string(access.JobsArgs)) {
		show.Args = editable(one.Args)
	}
	if show.ScheduleSetting, err = d.o.ShownSchedule(r, p.Principal, name, show.ScheduleSetting); err != nil {
		return err
	}
	if p.Can(string(access.SchedulesManage)) {
		show.Actions = scheduleActions(one.Schedule)
		show.scheduleChoices, err = d.scheduleChoices(r)
	}
	p.Title, p.Live, p.Data, p.Still = "Schedule "+name, "events/stream", show, show.Later
	return err
}

// scheduleActions are what may be done to a schedule.
func scheduleActions(s job.Schedule) []action {
	path := "admin/workers/schedules/" + s.Name
	list := []action{{"POST", path + "/trigger", "Trigger now", "The job of schedule " + s.Name + " is submitted now, in addition to its planned occurrences.", false}}
	if s.Paused {
		return append(list, action{"POST", path + "/resume", "Resume", "", false})
	}
	return append(list, action{"POST", path + "/pause", "Pause", "Schedule " + s.Name + " does not fire until it is resumed. Occurrences during the pause are skipped.", true})
}
