// Package doctor examines the PostgreSQL server, the tables and the fleet, and proposes a remedy for each finding. It changes nothing. A
// pod serves its findings through the API. The command doctor adds the checks of the connection and the schema, which must work without an
// API.
package doctor

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/trapeze-run/trapeze/internal/humanize"
	"github.com/trapeze-run/trapeze/internal/store"
	"github.com/trapeze-run/trapeze/internal/store/view"
	"github.com/trapeze-run/trapeze/internal/telemetry"
)

// Health is the result of a check.
type Health string

const (
	Healthy Health = "ok"
	Warning Health = "warn" // can wait until working hours
	Failing Health = "fail" // keeps jobs from running, or loses them
)

// Finding is the result of a check, with its remedy. A check has one finding or several.
type Finding struct {
	Check  string `json:"check"`
	Status Health `json:"status"`
	Says   string `json:"says"`
	Do     string `json:"do"` // empty: nothing
}

// DefaultThreshold is the default of each of the [Thresholds].
const DefaultThreshold = 5 * time.Minute

// Thresholds separate healthy from unhealthy ages.
type Thresholds struct {
	Transaction time.Duration // an older transaction is a warning; twelve times as old, a failure
	Overdue     time.Duration // a job that has been due for longer, and does not run, is a finding
}

// Pod is the configuration of the pod that examines.
type Pod struct {
	Name                         string
	Slots                        int
	Connections, HostConnections int           // the maximum: of the pod itself, and of the host's pool
	MaxAge, ApprovalTTL          time.Duration // 0: no limit
	Log                          *slog.Logger  // receives the errors of checks
}

// examineFor limits an examination, so that a slow database does not exceed the timeout of clients: the remaining checks fail.
const examineFor = 20 * time.Second

// examination is one run of all checks.
type examination struct {
	Thresholds
	pod      Pod
	store    *store.Store
	server   view.Server
	findings []Finding
}

// Examine runs all checks. A failed check is a finding. It returns an error if the database does not answer, or ctx ends.
func Examine(ctx context.Context, s *store.Store, pod Pod, t Thresholds) ([]Finding, error) {
	server, err := view.ReadServer(ctx, s)
	if err != nil {
		return nil, err
	}
	e := &examination{Thresholds: t, pod: pod, store: s, server: server}
	e.durability()
	e.autovacuum()
	e.connections()
	bounded, cancel := context.WithTimeout(ctx, examineFor)
	defer cancel()
	for _, check := range []struct {
		name string
		do   func(context.Context) error
	}{
		{"clock", e.clock}, {"horizon", e.horizon}, {"history", e.history}, {"tables", e.tables}, {"partitions", e.partitions},
		{"maintenance", e.maintenance}, {"pods", e.pods}, {"running", e.running}, {"lanes", e.lanes}, {"limits", e.limits},
		{"schedules", e.schedules}, {"producers", e.producers},
	} {
		if err := check.do(bounded); err != nil {
			pod.Log.WarnContext(ctx, "doctor check failed", telemetry.Check, check.name, telemetry.Err, err)
			e.find(check.name, Failing, "check failed: "+reason(err), "check that the database answers and that this role may read")
		}
	}
	return e.findings, ctx.Err()
}

// reason returns why a check failed. The text of an error of the connection may name hosts and users: only the log has it.
func reason(err error) string {
	_, refused := errors.AsType[*pgconn.ConnectError](err)
	if _, answered := errors.AsType[*pgconn.PgError](err); answered && !refused {
		return humanize.OneLine(err)
	}
	return "the database did not respond in time"
}

func (e *examination) find(check string, status Health, says, do string) {
	e.findings = append(e.findings, Finding{check, status, says, do})
}
