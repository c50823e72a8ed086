package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"

	"github.com/trapeze-run/trapeze/job"
)

const schedulesPath = "/admin/workers/schedules"

// schedulePath is the path of a schedule. A name that cannot be one has a path of its own too, so that the server says so.
func schedulePath(name string) string { return schedulesPath + "/" + url.PathEscape(name) }

func (s *server) Schedules(ctx context.Context) ([]job.ScheduleUse, error) {
	var answer struct {
		Schedules []job.ScheduleUse `json:"schedules"`
	}
	err := s.get(ctx, schedulesPath, nil, &answer)
	return answer.Schedules, err
}

func (s *server) Schedule(ctx context.Context, name string) (one job.ScheduleUse, err error) {
	err = s.get(ctx, schedulePath(name), nil, &one)
	return one, err
}

func (s *server) ScheduleFires(ctx context.Context, name string, limit int) (list []job.Fire, err error) {
	q := url.Values{}
	for left := limit; left > 0; left = limit - len(list) {
		setID(q, "limit", int64(min(left, 1000)))
		var page struct {
			Fires      []job.Fire `json:"fires"`
			NextCursor string     `json:"next_cursor"`
		}
		if err := s.get(ctx, schedulePath(name)+"/fires", q, &page); err != nil {
			return nil, err
		}
		if list = append(list, page.Fires...); page.NextCursor == "" {
			break
		}
		q.Set("cursor", page.NextCursor)
	}
	return list, nil
}

// scheduleBody says, as the command line always does, that the kind need not be known to the server.
type scheduleBody struct {
	job.ScheduleChange
	Foreign bool `json:"foreign"`
}

// SetSchedule changes a schedule that is there, or makes one unless the change is of one that exists.
func (s *server) SetSchedule(ctx context.Context, name string, change job.ScheduleChange) (done job.ScheduleChanged, err error) {
	path, body := fmt.Sprintf("%s?dry_run=%t", schedulePath(name), change.DryRun), scheduleBody{change, true}
	err = s.ask(ctx, http.MethodPatch, path, nil, body, &done)
	if answer, ok := errors.AsType[*answerError](err); ok && answer.status == http.StatusNotFound && !change.Existing {
		err = s.ask(ctx, http.MethodPut, path, nil, body, &done)
	}
	return done, err
}

func (s *server) DeleteSchedule(ctx context.Context, name string) error {
	return s.ask(ctx, http.MethodDelete, schedulePath(name), nil, nil, nil)
}

func (s *server) PauseSchedule(ctx context.Context, name string) (bool, error) {
	return s.reopen(ctx, schedulePath(name)+"/pause")
}

func (s *server) ResumeSchedule(ctx context.Context, name string) (bool, error) {
	return s.reopen(ctx, schedulePath(name)+"/resume")
}

func (s *server) TriggerSchedule(ctx context.Context, name string) (fire job.Fire, err error) {
	err = s.ask(ctx, http.MethodPost, schedulePath(name)+"/trigger", nil, nil, &fire)
	return fire, err
}
