package main

import (
	"context"
	"net/http"
	"net/url"

	"github.com/trapeze-run/trapeze/job"
)

const retentionPath = "/admin/workers/retention"

func (s *server) Retentions(ctx context.Context) ([]job.Retention, error) {
	var answer struct {
		Retention []job.Retention `json:"retention"`
	}
	err := s.get(ctx, retentionPath, nil, &answer)
	return answer.Retention, err
}

func (s *server) SetRetention(ctx context.Context, kind string, state job.State, keepS int64) (done job.RetentionChanged, err error) {
	err = s.ask(ctx, http.MethodPut, keptPath(kind, state), nil, map[string]int64{"keep_s": keepS}, &done)
	return done, err
}

func (s *server) UnsetRetention(ctx context.Context, kind string, state job.State) (done job.RetentionChanged, err error) {
	err = s.ask(ctx, http.MethodDelete, keptPath(kind, state), nil, nil, &done)
	return done, err
}

func keptPath(kind string, state job.State) string {
	return retentionPath + "/" + url.PathEscape(kind) + "/" + url.PathEscape(string(state))
}
