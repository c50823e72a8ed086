// Package doctor examines the PostgreSQL server, the tables and the fleet, and proposes a remedy for each finding. It changes nothing. A
// pod serves the findings through the API. The doctor command adds checks of the connection and the schema, which must work without the
// API.
package doctor

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/trapeze-run/trapeze/internal/store"
	"github.com/trapeze-run/trapeze/internal/store/view"
	"github.com/trapeze-run/trapeze/internal/telemetry"
	"github.com/trapeze-run/trapeze/internal/text"
)

// Health is a finding's status.
type Health string

const (
	Healthy Health = "ok"
	Warning Health = "warn" // can wait until working hours
	Failing Health = "fail" // prevents jobs from running, or loses jobs
)

// Finding is one result of a check, with its remedy. A check with nothing to report may return no findings.
type Finding struct {
	Check  string `json:"check"`
	Status Health `json:"status"`
	Says   string `json:"says"`
	Do     string `json:"do"` // the remedy; empty if there is nothing to do
}

// DefaultThreshold is the default for each of the [Thresholds].
const DefaultThreshold = 5 * time.Minute

// Thresholds are the ages above which a check reports a finding.
type Thresholds struct {
	Transaction time.Duration // a transaction older than this is a warning; one older than twelve times this is a failure
	Overdue     time.Duration // a job that has been due for longer than this is a finding
}

// Pod is the configuration of the pod that runs the checks.
type Pod struct {
	Name                         string
	Slots                        int
	Connections, HostConnections int           // maximum number of connections used by the pod and by the host's pool
	MaxAge, ApprovalTTL          time.Duration // 0 means no limit
	Log                          *slog.Logger  // receives the errors of checks
	Own                          *store.Store  // finds sessions that block a check, beside the store on which the checks run
}

// examineFor is the timeout for an examination. It ensures that clients receive a response before they time out, even if the database is
// slow. Checks that have not finished by then fail.
const examineFor = 20 * time.Second

// checkWhileLocked is the timeout for each check if another session holds a lock on Trapeze's tables. It keeps the examination short.
const checkWhileLocked = 300 * time.Millisecond

// slowCheck is the interval at which a running check is examined for a wait for another session's lock. [Locks] reports waits of a second.
const slowCheck = 1100 * time.Millisecond

// examination is a single run of all checks.
type examination struct {
	Thresholds
	pod      Pod
	store    *store.Store
	server   view.Server
	now      time.Time // the database's time, to which the ages in tables refer
	findings []Finding
}

// Examine runs all checks. A check that fails becomes a finding. Examine returns an error if the database does not respond or ctx is
// cancelled.
func Examine(ctx context.Context, s *store.Store, pod Pod, t Thresholds) ([]Finding, error) {
	locks, err := Locks(ctx, pod.Own)
	if err != nil {
		return nil, err
	}
	server, err := view.ReadServer(ctx, s)
	if err != nil {
		return nil, err
	}
	now, err := view.Now(ctx, s)
	if err != nil {
		return nil, err
	}
	e := &examination{Thresholds: t, pod: pod, store: s, server: server, now: now, findings: locks}
	e.durability()
	e.autovacuum()
	e.connections()
	e.notifications()
	bounded, cancel := context.WithTimeout(ctx, examineFor)
	defer cancel()
	for _, check := range []struct {
		name string
		do   func(context.Context) error
	}{
		{"collation", e.collation}, {"clock", e.clock}, {"horizon", e.horizon}, {"history", e.history}, {"tables", e.tables}, {"partitions", e.partitions},
		{"maintenance", e.maintenance}, {"pods", e.pods}, {"running", e.running}, {"lanes", e.lanes}, {"limits", e.limits}, {"keys", e.keys},
		{"schedules", e.schedules}, {"producers", e.producers},
		{"replication", e.replication},
	} {
		err := e.unlessLocked(bounded, check.do)
		if err != nil && e.locked() && (errors.Is(err, context.DeadlineExceeded) || store.Transient(err)) {
			e.find(check.name, Warning, "not read: its tables are locked", "see the check locks, then run trapeze doctor again")
			continue
		}
		if err != nil {
			pod.Log.WarnContext(ctx, "doctor check failed", telemetry.Check, check.name, telemetry.Err, err)
			e.find(check.name, Failing, "check failed: "+reason(err), "check that the database responds and that this role has read access")
		}
	}
	return e.findings, ctx.Err()
}

// locked reports whether another session blocks sessions of Trapeze.
func (e *examination) locked() bool { return e.findings[0].Status == Failing }

// unlessLocked runs a check. If the check is slow because another session blocks it, unlessLocked ends the check and adds the findings on
// that session, in place of the first finding, which is that of the check locks.
func (e *examination) unlessLocked(ctx context.Context, check func(context.Context) error) error {
	if e.locked() {
		ctx, cancel := context.WithTimeout(ctx, checkWhileLocked)
		defer cancel()
		return check(ctx)
	}
	ctx, cancel := context.WithCancel(ctx)
	var found []Finding
	var watch sync.WaitGroup
	watch.Go(func() {
		for {
			select {
			case <-time.After(slowCheck):
			case <-ctx.Done():
				return
			}
			if locks, err := Locks(ctx, e.pod.Own); err == nil && locks[0].Status == Failing {
				found = locks
				cancel()
			}
		}
	})
	err := check(ctx)
	cancel()
	watch.Wait()
	if len(found) > 0 {
		e.findings = append(found, e.findings[1:]...)
		if err != nil {
			err = context.DeadlineExceeded
		}
	}
	return err
}

// reason returns why a check failed. Connection errors may contain host and user names, so their text is written only to the log.
func reason(err error) string {
	_, refused := errors.AsType[*pgconn.ConnectError](err)
	if _, answered := errors.AsType[*pgconn.PgError](err); answered && !refused {
		return text.OneLine(err)
	}
	return "the database did not respond in time"
}

func (e *examination) find(check string, status Health, says, do string) {
	e.findings = append(e.findings, Finding{check, status, says, do})
}
