package ui

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"time"

	"github.com/trapeze-run/trapeze/internal/access"
	"github.com/trapeze-run/trapeze/internal/failures"
	storeview "github.com/trapeze-run/trapeze/internal/store/view"
	"github.com/trapeze-run/trapeze/internal/text"
	"github.com/trapeze-run/trapeze/job"
)

// jobPage holds the data for a job's page.
type jobPage struct {
	history
	Attempts  []attempt
	Newest    []job.Event // the events, newest first
	Actions   []action
	Blockers  []job.Blocker // why the job is not running
	Retry     string        // the question to ask before a retry; does not mention the arguments
	CanReprio bool
	OfChain   bool // a priority set on the running job applies to its next steps
	CanStack  bool
	Group     string    // the failure group of a failed job; otherwise empty
	Editable  string    // the arguments that the visitor can edit for a retry; empty if they cannot be edited
	Hidden    bool      // some values in the arguments are hidden from the visitor
	Approval  *approval // nil if the job does not await approval
}

// showJob shows the page of one job.
func showJob(rd *reader, p *page, r *http.Request) error {
	id, err := text.ParseJobID(r.PathValue("id"))
	if err != nil {
		return err
	}
	h, err := rd.readHistory(r.Context(), p.Principal, id)
	if err != nil {
		return err
	}
	if h.JobRow, err = rd.o.Shown(r, p.Principal, h.JobRow); err != nil {
		return err
	}
	show := jobPage{history: h, Attempts: attemptsOf(h, p.Now), Hidden: p.hides(h.JobRow)}
	if show.Retry, err = rd.asksRetry(r.Context(), h.JobRow); err != nil {
		return err
	}
	show.Actions = p.jobActions(h.JobRow, show.Retry)
	if h.State == job.AwaitingApproval {
		second, err := storeview.NeedsSecond(r.Context(), rd.o.Store, id)
		if err != nil {
			return err
		}
		show.Approval = p.Approval(id, h.Epoch, h.Submitter, second)
		show.Approval.Alone = true
	}
	if show.Blockers, err = rd.blockers(r.Context(), p.Principal, h.JobRow); err != nil {
		return err
	}
	show.Newest = slices.Clone(h.Events)
	slices.Reverse(show.Newest)
	show.OfChain = h.State == job.Running && len(job.Following(h.Planned)) > 0
	show.CanReprio = p.CanFor(access.WorkersManage, h.Submitter) && (h.State == job.Pending || h.State == job.AwaitingApproval || show.OfChain)
	show.CanStack = h.State == job.Running && h.Worker == nil && p.CanFor(access.JobsStack, h.Submitter)
	if p.CanFor(access.JobsRetry, h.Submitter) && p.CanFor(access.JobsArgs, h.Submitter) && (h.State == job.Failed || h.State == job.Cancelled) {
		show.Editable = editable(h.Args)
	}
	if h.State == job.Failed {
		show.Group = failures.ID(h.Kind, cmp.Or(orEmpty(h.Error), orEmpty(h.Reason)))
	}
	p.Title, p.Data = "Job "+strconv.FormatInt(id, 10), show
	p.Live, p.Still = "jobs/"+strconv.FormatInt(id, 10)+"/stream", h.State.Terminal()
	return nil
}

// blockers returns the reasons why a job is not running. It does not name the blocking job to visitors who may see only their own jobs.
func (rd *reader) blockers(ctx context.Context, who access.Principal, j job.JobRow) ([]job.Blocker, error) {
	if j.State.Terminal() || j.State == job.Running {
		return nil, nil
	}
	list, err := storeview.Blockers(ctx, rd.o.Store, j.ID, func(ctx context.Context) ([]storeview.BoardSlots, error) {
		return rd.slots.get(ctx, false, func(ctx context.Context) ([]storeview.BoardSlots, error) {
			return storeview.SlotsInUse(ctx, rd.o.Store)
		})
	})
	if who.Owner(access.JobsRead) != "" {
		for i := range list {
			list[i].JobID = nil
		}
	}
	return list, err
}

// asksRetry returns the question to ask before retrying a job that ended without success. For a child, it states whether the step after the
// children will run again.
func (rd *reader) asksRetry(ctx context.Context, j job.JobRow) (string, error) {
	question := fmt.Sprintf("Job %d runs again in a new epoch.", j.ID)
	if j.GroupID == nil || j.State != job.Failed && j.State != job.Cancelled {
		return question, nil
	}
	parent, err := rd.o.Store.Waiting(ctx, *j.GroupID)
	if err != nil && !errors.Is(err, job.ErrNotFound) {
		return "", err
	}
	if parent.Waits {
		return question + fmt.Sprintf(" Job %d still waits for it.", *j.GroupID), nil
	}
	return question + fmt.Sprintf(" Job %d no longer waits for it: the step after the children does not run again.", *j.GroupID), nil
}

// jobActions returns the actions that the visitor may take on a job in its current state. retry is the question to ask before a retry.
func (v visitor) jobActions(j job.JobRow, retry string) (list []action) {
	id := strconv.FormatInt(j.ID, 10)
	offer := func(needs access.Permission, when bool, a action) {
		if when && v.CanFor(needs, j.Submitter) {
			list = append(list, a)
		}
	}
	over := j.State.Terminal()
	offer(access.JobsRetry, j.State == job.Failed || j.State == job.Cancelled, action{"POST", "jobs/" + id + "/retry", "Retry",
		retry + " Its arguments stay the same.", false})
	rejects := j.State == job.AwaitingApproval && v.CanFor(access.JobsApprove, j.Submitter) // the Reject button sends the same request
	offer(access.JobsCancel, !over && !j.CancelRequested && !rejects, action{"POST", "jobs/" + id + "/cancel", "Cancel",
		"Job " + id + " is cancelled: at once if it is not running, otherwise when its handler returns.", true})
	offer(access.WorkersManage, j.State == job.Running && v.CanFor(access.JobsCancel, j.Submitter), action{"POST", "admin/workers/jobs/" + id + "/force-cancel", "Force cancel",
		"Job " + id + " ends at once, without waiting for its handler. A later result of the handler is rejected.", true})
	return list
}

// jobValue returns a handler that serves a job's arguments or result as a download. Hidden values are masked, as on the job's page.
func jobValue(of string) func(*reader, *page, *http.Request) error {
	return func(rd *reader, p *page, r *http.Request) error {
		id, err := text.ParseJobID(r.PathValue("id"))
		if err != nil {
			return err
		}
		j, err := rd.shownJob(r, p, id)
		if err != nil {
			return err
		}
		value := j.Args
		if of == "result" {
			value = j.Result
		}
		if value == nil {
			value = json.RawMessage("null")
		}
		var body bytes.Buffer
		err = json.Indent(&body, value, "", "  ")
		body.WriteByte('\n')
		p.file = &download{"job-" + strconv.FormatInt(id, 10) + "-" + of + ".json", body.Bytes()}
		return err
	}
}

// approval holds the buttons for a job that awaits approval. The buttons open a dialog that shows the job's details and arguments.
type approval struct {
	ID      int64
	Epoch   int  // the buttons apply only to this epoch, because another one may have different arguments
	Alone   bool // the job is the only one on the page
	Approve bool
	Reject  bool
	Own     bool // the visitor has the permission but submitted the job, so another person must approve it
}

// Approval returns the buttons that the visitor may use for a job that awaits approval. If second is set, a lane requires approval by
// another person.
func (p *page) Approval(id int64, epoch int, submitter string, second bool) *approval {
	may := p.CanFor(access.JobsApprove, submitter)
	own := may && (p.FourEyes || second) && submitter == p.Name
	return &approval{ID: id, Epoch: epoch, Approve: may && !own, Reject: may && p.CanFor(access.JobsCancel, submitter), Own: own}
}

// hides reports whether any values in a job's arguments are hidden from the visitor.
func (v visitor) hides(j job.JobRow) bool {
	return !v.CanFor(access.JobsArgs, j.Submitter) && bytes.Contains(j.Args, []byte(access.Masked))
}

// submission holds the data for the page that submits a job. The form can be prefilled from an earlier job, the template.
type submission struct {
	Kind     string
	Lane     string
	Subject  string
	Key      string
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
			show.Lane, show.Subject, show.Key, show.Priority = like.Lane, like.Subject, like.Key, &like.Priority
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
func (rd *reader) template(ctx context.Context, who access.Principal, like, kind string) (found *job.JobRow, until time.Time, err error) {
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
