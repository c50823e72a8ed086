package api

import (
	"net/http"

	"github.com/trapeze-run/trapeze/internal/access"
	"github.com/trapeze-run/trapeze/internal/text"
	"github.com/trapeze-run/trapeze/runner"
)

var eraseRoutes = []Route{
	{Method: http.MethodPost, Path: "/admin/subjects/erase", Needs: access.JobsErase, Summary: "Erase the data of a subject's finished jobs",
		in: Erasure{}, out: of[Erased](), do: eraseSubject},
}

// Erasure is the body of an erasure request.
type Erasure struct {
	Subject string `json:"subject"`
	Kind    string `json:"kind,omitempty"` // all kinds if empty
	DryRun  bool   `json:"dry_run,omitempty"`
	After   string `json:"after,omitempty"` // the Next value of the previous response
}

// Erased is the response to an erasure.
type Erased struct {
	Erased       int      `json:"erased"` // the number of erased jobs
	Open         int      `json:"open"`   // the number of jobs kept because they, or jobs that followed from them, are unfinished
	Sample       []string `json:"sample"` // the IDs of the first jobs counted in Open
	Schedules    []string `json:"schedules"`
	Engines      []string `json:"engines"` // the lanes' engines other than PostgreSQL; their copies of the jobs are not erased
	AuditEntries int      `json:"audit_entries"`
	Next         string   `json:"next"` // if not empty, repeat the request with this value in After
	DryRun       bool     `json:"dry_run"`
}

func eraseSubject(c *call) (any, error) {
	body, err := readBody[Erasure](c)
	if err != nil {
		return nil, err
	}
	e := runner.Erasure{Subject: body.Subject, Kind: body.Kind, DryRun: body.DryRun}
	if body.After != "" {
		if e.After, err = text.ParseID(body.After); err != nil {
			return nil, err
		}
	}
	did, err := c.r.Admin().Erase(c.ctx(), e, c.caller.Name)
	answer := Erased{Erased: did.Jobs, Open: did.Open, Sample: idTexts(did.Sample), Schedules: orEmpty(did.Schedules), Engines: orEmpty(did.Engines), AuditEntries: did.AuditEntries, DryRun: body.DryRun}
	if did.Next != 0 {
		answer.Next = idText(did.Next)
	}
	return answer, err
}
