package api

import (
	"net/http"

	"github.com/trapeze-run/trapeze/internal/access"
	"github.com/trapeze-run/trapeze/runner"
)

var eraseRoutes = []Route{
	{Method: http.MethodPost, Path: "/admin/subjects/erase", Needs: access.JobsErase, Summary: "Erase the data of a subject's jobs that have ended",
		in: Erasure{}, out: of[Erased](), do: eraseSubject},
}

// Erasure is the body of an erasure.
type Erasure struct {
	Subject string `json:"subject"`
	Kind    string `json:"kind,omitempty"` // empty: all kinds
	DryRun  bool   `json:"dry_run,omitempty"`
	After   string `json:"after,omitempty"` // next of the answer before
}

// Erased answers an erasure.
type Erased struct {
	Erased       int      `json:"erased"` // jobs
	Open         int      `json:"open"`   // jobs that stay: they, or jobs that followed from them, have not ended
	Sample       []string `json:"sample"` // the first of the open jobs
	Schedules    []string `json:"schedules"`
	AuditEntries int      `json:"audit_entries"`
	Next         string   `json:"next"` // not empty: ask again with it as after
	DryRun       bool     `json:"dry_run"`
}

func eraseSubject(c *call) (any, error) {
	body, err := readBody[Erasure](c)
	if err != nil {
		return nil, err
	}
	e := runner.Erasure{Subject: body.Subject, Kind: body.Kind, DryRun: body.DryRun}
	if body.After != "" {
		if e.After, err = ParseID(body.After); err != nil {
			return nil, err
		}
	}
	did, err := c.r.Admin().Erase(c.ctx(), e, c.caller.Name)
	answer := Erased{Erased: did.Jobs, Open: did.Open, Sample: idTexts(did.Sample), Schedules: orEmpty(did.Schedules), AuditEntries: did.AuditEntries, DryRun: body.DryRun}
	if did.Next != 0 {
		answer.Next = idText(did.Next)
	}
	return answer, err
}
