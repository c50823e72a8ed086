package admin

import (
	"context"
	"fmt"
	"time"

	statements "github.com/trapeze-run/trapeze/internal/store/admin"
	"github.com/trapeze-run/trapeze/job"
)

const (
	// eraseFor is the time limit after which Erase stops and returns the position at which the next call continues.
	eraseFor = 10 * time.Second
	// eraseSample is the maximum number of open jobs that a result lists.
	eraseSample = 10
)

// Erasure selects the data that [Admin.Erase] removes.
type Erasure struct {
	Subject string
	Kind    string // empty for all kinds
	DryRun  bool   // only count the jobs
	After   int64  // [Erased.Next] of the previous call, or 0 to start from the beginning
}

// EraseResult is the result of [Admin.Erase].
type EraseResult struct {
	Jobs         int      // jobs that were erased or, in a dry run, would be erased
	Open         int      // jobs of the subject that were skipped because they, or jobs that followed from them, have not finished
	Sample       []int64  // the first of the open jobs
	Schedules    []string // schedules that will submit more jobs for the subject
	Engines      []string // lane engines other than PostgreSQL, which may hold copies of the jobs that Erase cannot reach
	AuditEntries int      // audit entries from which the subject was removed or, in a dry run, would be removed
	Next         int64    // the [Erasure.After] of the next call, or 0 if all jobs have been read
}

// Erase removes a subject's data: the args, results, errors, keys, checkpoints, progress and event contents of its jobs. It does the same
// for all jobs that followed from them: later steps, children and on-failure jobs. The rows of all these jobs remain, with their kinds,
// states and times, but without the subject. An erased job cannot run again. Erase skips a job while its pipeline, or a job that followed
// from it, is unfinished: end those jobs and call Erase again.
//
// Erase scans all jobs because there is no index on the subject. If the scan has not finished after about 10 s, Erase returns with
// [EraseResult.Next] set. The last call also removes the subject from audit entries. Each batch is recorded in the audit log with the SHA-256 of
// the subject. Erase needs the permissions listed in docs/grants.md. It returns [job.ErrInvalid] if there is no subject. After
// [job.ErrOutcomeUnknown], the call can be repeated.
func (a Admin) Erase(ctx context.Context, e Erasure) (did EraseResult, err error) {
	if e.Subject == "" {
		return did, fmt.Errorf("%w: erase: subject is required", job.ErrInvalid)
	}
	for begin := time.Now(); ; {
		page, err := statements.Erase(ctx, a.pod.Commands, e.Subject, e.Kind, e.After, e.DryRun, a.actor)
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
	done, err := statements.EraseAudit(ctx, a.pod.Commands, e.Subject, e.Kind, e.DryRun, a.actor)
	did.AuditEntries, did.Schedules, did.Engines = done.AuditEntries, done.Schedules, done.Engines
	return did, a.pod.CommandError(err)
}
