package runner

import (
	"context"
	"fmt"
	"time"

	"github.com/trapeze-run/trapeze/internal/store/admin"
	"github.com/trapeze-run/trapeze/job"
)

const (
	// eraseFor is the time after which one call of Erase returns the position of the next.
	eraseFor = 10 * time.Second
	// eraseSample is the maximum number of open jobs that an answer lists.
	eraseSample = 10
)

// Erasure selects the data that [Admin.Erase] removes.
type Erasure struct {
	Subject string
	Kind    string // empty: all kinds
	DryRun  bool   // count the jobs and change nothing
	After   int64  // [Erased.Next] of the call before; 0: from the beginning
}

// Erased is the result of [Admin.Erase].
type Erased struct {
	Jobs         int      // erased; with a dry run, that would be
	Open         int      // jobs of the subject that stay, because they or the jobs that followed from them have not ended
	Sample       []int64  // the first of the open jobs
	Schedules    []string // schedules that will submit jobs of the subject
	AuditEntries int      // audit entries from which the subject was removed; with a dry run, that would be
	Next         int64    // call again with this in [Erasure.After]; 0: all jobs have been read
}

// Erase removes args, results, errors, keys, checkpoints, progress and the contents of events of the subject's jobs, and of all jobs that
// followed from them: later steps, children and on-failure jobs. Their rows stay, with kind, state and times, without the subject. An erased
// job cannot run again. A job stays whole while its pipeline, or a job that followed from it, has not ended: end those and erase again.
//
// Erase reads all jobs, because they have no index by subject. It returns after about 10 s with [Erased.Next] set when there is more to read.
// The last call also removes the subject from audit entries. The audit log gets one entry for each batch, which names the subject by its
// SHA-256. It needs the rights of docs/grants.md. Errors: [job.ErrInvalid] without a subject, [job.ErrOutcomeUnknown]: asking again is safe.
func (a Admin) Erase(ctx context.Context, e Erasure, actor string) (did Erased, err error) {
	actor = named(actor)
	if e.Subject == "" {
		return did, fmt.Errorf("%w: erase without a subject", job.ErrInvalid)
	}
	for begin := time.Now(); ; {
		page, err := admin.Erase(ctx, a.pod.Commands, e.Subject, e.Kind, e.After, e.DryRun, actor)
		did.Jobs += page.Jobs
		did.Open += len(page.Open)
		did.Sample = append(did.Sample, page.Open[:min(len(page.Open), eraseSample-len(did.Sample))]...)
		if err != nil {
			return did, a.pod.CommandError(err)
		}
		if e.After = page.Next; e.After == 0 {
			break
		}
		if time.Since(begin) > eraseFor {
			did.Next = e.After
			return did, nil
		}
	}
	did.AuditEntries, did.Schedules, err = admin.EraseAudit(ctx, a.pod.Commands, e.Subject, e.Kind, e.DryRun, actor)
	return did, a.pod.CommandError(err)
}
