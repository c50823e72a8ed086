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

// Calendar reads schedules. A runner implements it.
type Calendar interface {
	// Schedules returns all schedules by name.
	Schedules(ctx context.Context) ([]job.ScheduleUse, error)
	// ScheduleByName returns one schedule, or [job.ErrUnknownSchedule].
	ScheduleByName(ctx context.Context, name string) (job.ScheduleUse, error)
	// ScheduleFiresBefore returns the occurrences of a schedule before a time, newest first; the zero time means no
	// limit.
	ScheduleFiresBefore(ctx context.Context, name string, before time.Time, limit int) ([]job.Fire, error)
}

// schedule is a schedule as pages show it.
type schedule struct {
	job.ScheduleUse
	Now time.Time
}

// overdueAfter is how late an occurrence may be before the page reports it: a few heartbeats.
const overdueAfter = 10 * time.Second

// State returns the state of the schedule in a word.
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

// Overdue reports whether an occurrence is due and no pod has processed it.
func (s schedule) Overdue() bool {
	return s.NextAt != nil && !s.Paused && s.Now.Sub(*s.NextAt) > overdueAfter
}

// ZoneUnsaid reports whether the words do not name the zone.
func (s schedule) ZoneUnsaid() bool { return !strings.HasSuffix(s.Words, s.Zone) }

// Last returns the latest occurrence; nil: there was none.
func (s schedule) Last() *job.Fire {
	if len(s.LastFires) == 0 {
		return nil
	}
	return &s.LastFires[0]
}

// Moment returns a time with the wall time of the schedule's zone.
func (s schedule) Moment(t *time.Time) moment {
	m := ago(s.Now, t)
	if t != nil {
		m.Full = s.Local(*t) + " (" + m.Full + ")"
	}
	return m
}

// missedWords describes the policy for missed occurrences.
func missedWords(s job.ScheduleSetting) string {
	switch s.Missed {
	case job.MissedCatchUp:
		return fmt.Sprintf("one job for each of the latest %s", number(s.CatchUp))
	case job.MissedSkip:
		return "no job"
	}
	return "one job for all of them"
}

// Local returns the wall time of the schedule's zone.
func (s schedule) Local(t time.Time) string { return inZone(s.Zone, t) }

// inZone returns the wall time of a zone, with the zone's abbreviation at that time.
func inZone(zone string, t time.Time) string {
	place, err := time.LoadLocation(zone)
	if err != nil {
		place = time.UTC
	}
	return t.In(place).Format("Mon 2 Jan 2006, 15:04:05 MST")
}

// scheduleList is the content of the page of all schedules.
type scheduleList struct {
	Schedules []schedule
	Lane      string              // of a new schedule
	New       job.ScheduleSetting // the defaults of a new schedule
	scheduleChoices
}

// scheduleChoices are the options of a schedule's form.
type scheduleChoices struct {
	Kinds []string // kinds with a handler on a pod
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
	found, err := d.calendar.get(r.Context(), r.Header.Get("X-Fresh") != "", d.o.Calendar.Schedules)
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

// schedulePage is the content of the page of a schedule.
type schedulePage struct {
	schedule
	scheduleChoices
	Fires   []job.Fire
	Next    string // the URL of the page with earlier occurrences; empty: there is none
	Later   bool   // it is not the first page
	Actions []action
	Args    string // for the form; empty: the visitor may not see them
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

// scheduleActions returns the actions on a schedule.
func scheduleActions(s job.Schedule) []action {
	path := "admin/workers/schedules/" + s.Name
	list := []action{{"POST", path + "/trigger", "Trigger now", "The job of schedule " + s.Name + " is submitted now, in addition to its planned occurrences.", false}}
	if s.Paused {
		return append(list, action{"POST", path + "/resume", "Resume", "", false})
	}
	return append(list, action{"POST", path + "/pause", "Pause", "Schedule " + s.Name + " does not fire until it is resumed. Occurrences during the pause are skipped.", true})
}
