package ui

import (
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/trapeze-run/trapeze/internal/access"
	"github.com/trapeze-run/trapeze/internal/text"
	"github.com/trapeze-run/trapeze/job"
)

// schedule is a schedule with the methods that templates use.
type schedule struct {
	job.ScheduleUse
	Now time.Time
}

// overdueAfter is how late an occurrence may be before the page reports it. It equals a few heartbeats.
const overdueAfter = 10 * time.Second

// State returns the schedule's state as one word.
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

// Overdue reports whether an occurrence is due but no pod has processed it.
func (s schedule) Overdue() bool {
	return s.NextAt != nil && !s.Paused && s.Now.Sub(*s.NextAt) > overdueAfter
}

// ZoneUnsaid reports whether the description in words omits the time zone.
func (s schedule) ZoneUnsaid() bool { return !strings.HasSuffix(s.Words, s.Zone) }

// Last returns the latest occurrence, or nil if there is none.
func (s schedule) Last() *job.Occurrence {
	if len(s.LastFires) == 0 {
		return nil
	}
	return &s.LastFires[0]
}

// Moment returns a time for display, including the local time in the schedule's zone.
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

// Local formats a time in the schedule's zone.
func (s schedule) Local(t time.Time) string { return inZone(s.Zone, t) }

// inZone formats a time in a zone, with the zone's abbreviation at that time.
func inZone(zone string, t time.Time) string {
	place, err := time.LoadLocation(zone)
	if err != nil {
		place = time.UTC
	}
	return t.In(place).Format("Mon 2 Jan 2006, 15:04:05 MST")
}

// scheduleList holds the data for the page that lists the schedules.
type scheduleList struct {
	Schedules []schedule
	Lane      string              // the lane of a new schedule
	New       job.ScheduleSetting // the defaults of a new schedule
	formChoices
}

// showSchedules lists the schedules.
func showSchedules(rd *reader, p *page, r *http.Request) error {
	found, err := rd.calendar.get(r.Context(), fresh(r), rd.o.Calendar.Schedules)
	if err != nil {
		return err
	}
	show := scheduleList{New: job.DefaultSchedule()}
	for _, s := range found {
		show.Schedules = append(show.Schedules, schedule{s, p.Now})
	}
	if p.Can(string(access.SchedulesManage)) {
		show.formChoices, err = rd.formChoices(r)
	}
	p.Title, p.Live, p.Data = "Schedules", "events/stream", show
	return err
}

// schedulePage holds the data for a schedule's page.
type schedulePage struct {
	schedule
	formChoices
	Occurrences []job.Occurrence
	Next        string // the URL of the page with earlier occurrences, or empty if there is none
	Later       bool   // not the first page
	Actions     []action
	Args        string // the arguments for the form; empty if the visitor may not see them
	AsksFor     string // the path to which the form sends its request
}

// showSchedule shows the page of one schedule.
func showSchedule(rd *reader, p *page, r *http.Request) error {
	name := r.PathValue("name")
	if job.ValidateScheduleName(name) != nil {
		return job.ErrUnknownSchedule
	}
	before, err := text.DecodeCursor("occurrences", r.URL.Query().Get("cursor"))
	if err != nil {
		return invalid(fmt.Errorf("cursor: %w", err))
	}
	from := time.Time{}
	if before != "" {
		if from, err = time.Parse(time.RFC3339Nano, before); err != nil {
			return invalid(err)
		}
	}
	s, err := rd.o.Calendar.ScheduleByName(r.Context(), name)
	if err != nil {
		return err
	}
	show := schedulePage{schedule: schedule{s, p.Now}, Later: before != "", AsksFor: "admin/workers/schedules/" + name}
	if show.Occurrences, err = rd.o.Calendar.ScheduleOccurrences(r.Context(), name, from, perPage); err != nil {
		return err
	}
	if len(show.Occurrences) == perPage {
		show.Next = "schedules/" + name + "?cursor=" + text.EncodeCursor("occurrences", show.Occurrences[perPage-1].FireAt.Format(time.RFC3339Nano))
	}
	if p.Can(string(access.JobsArgs)) {
		show.Args = editable(s.Args)
	}
	if show.ScheduleSetting, err = rd.o.ShownSchedule(r, p.Principal, name, show.ScheduleSetting); err != nil {
		return err
	}
	if p.Can(string(access.SchedulesManage)) {
		show.Actions = scheduleActions(s.Schedule)
		show.formChoices, err = rd.formChoices(r)
	}
	p.Title, p.Live, p.Data, p.Still = "Schedule "+name, "events/stream", show, show.Later
	return err
}

// scheduleActions returns the actions that can be taken on a schedule.
func scheduleActions(s job.Schedule) []action {
	path := "admin/workers/schedules/" + s.Name
	list := []action{{"POST", path + "/trigger", "Trigger now", "The job of schedule " + s.Name + " is submitted now, in addition to its planned occurrences.", false}}
	if s.Paused {
		return append(list, action{"POST", path + "/resume", "Resume", "", false})
	}
	return append(list, action{"POST", path + "/pause", "Pause", "Schedule " + s.Name + " does not fire until it is resumed. Occurrences during the pause are skipped.", false})
}
