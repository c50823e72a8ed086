package ui

import (
	"context"
	"fmt"
	"net/http"
	"time"

	"github.com/trapeze-run/trapeze/internal/access"
	storeview "github.com/trapeze-run/trapeze/internal/store/view"
	"github.com/trapeze-run/trapeze/internal/text"
	"github.com/trapeze-run/trapeze/job"
)

// submission holds the data for the page that submits a job. The form can be prefilled from an earlier job, the template.
type submission struct {
	Kind     string
	Lane     string
	Subject  string
	Priority *int
	Args     string    // the arguments of the template, or {}
	Like     int64     // the ID of the template, or 0 if there is none
	Copied   bool      // the form contains the template's arguments
	Hidden   bool      // the visitor may not see the template's arguments
	Until    time.Time // if the search for a template stopped early, how far back it got
	formChoices
}

// showSubmit shows the form for a new job. The template is the job given by the like parameter, or else the latest job of the kind given by
// the kind parameter.
func showSubmit(rd *reader, p *page, r *http.Request) error {
	show := submission{Kind: r.URL.Query().Get("kind"), Args: "{}"}
	like, until, err := rd.template(r.Context(), p.Principal, r.URL.Query().Get("like"), show.Kind)
	if err != nil {
		return err
	}
	show.Until = until
	if like != nil {
		show.Kind, show.Like = like.Kind, like.ID
		if r.URL.Query().Get("like") != "" { // copy this particular job, not just its kind
			show.Lane, show.Subject, show.Priority = like.Lane, like.Subject, &like.Priority
		}
		if show.Hidden = !p.CanFor(access.JobsArgs, like.Submitter); !show.Hidden {
			shown, err := rd.o.Shown(r, p.Principal, *like) // if the secrets belong to another principal, Shown audits the access
			if err != nil {
				return err
			}
			if text := editable(shown.Args); text != "" {
				show.Args, show.Copied = text, true
			}
		}
	}
	if p.Can(string(access.WorkersView)) {
		show.formChoices, err = rd.formChoices(r)
	}
	p.Title, p.Data, p.Still = "Submit a job", show, true
	return err
}

// template returns the job with the given ID, or the latest visible job of the given kind. It returns nil if neither is given, or if there
// is no such job of the kind. If the search stopped early, until is how far back it got.
func (rd *reader) template(ctx context.Context, who access.Principal, like, kind string) (found *job.Job, until time.Time, err error) {
	if like != "" {
		id, err := text.ParseJobID(like)
		if err != nil {
			return nil, until, err
		}
		j, err := storeview.Job(ctx, rd.o.Store, id)
		if err == nil && !who.CanFor(access.JobsRead, j.Submitter) {
			err = fmt.Errorf("read job %d: %w", id, job.ErrNotFound)
		}
		return &j, until, err
	}
	if reads, _ := who.Can(access.JobsRead); kind == "" || !reads {
		return nil, until, nil
	}
	latest, err := storeview.Jobs(ctx, rd.o.Store, job.Filter{Kind: kind, Owner: who.Owner(access.JobsRead), Limit: 1})
	if err != nil || len(latest.Jobs) == 0 {
		return nil, latest.Searched, err
	}
	return &latest.Jobs[0], until, nil
}
