package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"time"

	"github.com/trapeze-run/trapeze/internal/store"
	"github.com/trapeze-run/trapeze/job"
)

const lanesPath = "/admin/workers/lanes"

func (s *server) Lanes(ctx context.Context) ([]store.LaneUse, error) {
	var answer struct {
		Lanes []store.LaneUse `json:"lanes"`
	}
	err := s.get(ctx, lanesPath, nil, &answer)
	return answer.Lanes, err
}

func (s *server) Status(ctx context.Context) (now store.Status, err error) {
	err = s.get(ctx, "/admin/workers/status", nil, &now)
	return now, err
}

// SetLane changes a lane that is there, or makes one.
func (s *server) SetLane(ctx context.Context, name string, change job.LaneChange) (done job.LaneChanged, err error) {
	path := fmt.Sprintf("%s/%s?dry_run=%t", lanesPath, url.PathEscape(name), change.DryRun)
	err = s.ask(ctx, http.MethodPatch, path, nil, change, &done)
	if answer, ok := errors.AsType[*answerError](err); ok && answer.status == http.StatusNotFound {
		err = s.ask(ctx, http.MethodPut, path, nil, change, &done)
	}
	return done, err
}

func (s *server) DeleteLane(ctx context.Context, name, moveTo string, dryRun bool) (done job.LaneChanged, err error) {
	path := fmt.Sprintf("%s/%s?dry_run=%t&move_to=%s", lanesPath, url.PathEscape(name), dryRun, url.QueryEscape(moveTo))
	err = s.ask(ctx, http.MethodDelete, path, nil, nil, &done)
	return done, err
}

func (s *server) DrainLane(ctx context.Context, name string, wait time.Duration) (job.Quiet, error) {
	return s.shut(ctx, lanesPath+"/"+url.PathEscape(name)+"/drain", wait)
}

func (s *server) DrainPod(ctx context.Context, pod string, wait time.Duration) (job.Quiet, error) {
	return s.shut(ctx, "/admin/workers/pods/"+url.PathEscape(pod)+"/drain", wait)
}

func (s *server) Freeze(ctx context.Context, wait time.Duration) (job.Quiet, error) {
	return s.shut(ctx, "/admin/workers/freeze", wait)
}

// waitAtOnce is how long one request waits: less than [serverPatience].
const waitAtOnce = 20 * time.Second

// shut closes something, and asks again until it is quiet or the wait is over.
func (s *server) shut(ctx context.Context, path string, wait time.Duration) (quiet job.Quiet, err error) {
	changed := false
	for until := time.Now().Add(wait); ; {
		step := max(min(time.Until(until), waitAtOnce), 0)
		quiet = job.Quiet{}
		if err := s.ask(ctx, http.MethodPost, path, nil, map[string]string{"wait": step.String()}, &quiet); err != nil {
			return quiet, err
		}
		changed = changed || quiet.Changed
		quiet.Changed = changed
		if quiet.Quiet || !quiet.TimedOut || time.Until(until) <= 0 {
			return quiet, nil
		}
	}
}

func (s *server) ResumeLane(ctx context.Context, name string) (bool, error) {
	return s.reopen(ctx, lanesPath+"/"+url.PathEscape(name)+"/resume")
}

func (s *server) ResumePod(ctx context.Context, pod string) (bool, error) {
	return s.reopen(ctx, "/admin/workers/pods/"+url.PathEscape(pod)+"/resume")
}

func (s *server) Thaw(ctx context.Context) (bool, error) { return s.reopen(ctx, "/admin/workers/thaw") }
func (s *server) Pause(ctx context.Context) (bool, error) {
	return s.reopen(ctx, "/admin/workers/pause")
}
func (s *server) Unpause(ctx context.Context) (bool, error) {
	return s.reopen(ctx, "/admin/workers/unpause")
}

func (s *server) reopen(ctx context.Context, path string) (bool, error) {
	var answer struct {
		Changed bool `json:"changed"`
	}
	err := s.ask(ctx, http.MethodPost, path, nil, nil, &answer)
	return answer.Changed, err
}
