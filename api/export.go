package api

import (
	"bufio"
	"context"
	"encoding/json"
	"log/slog"
	"net/http"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/labstack/echo/v4"

	"github.com/trapeze-run/trapeze/api/internal/response"
	"github.com/trapeze-run/trapeze/internal/access"
	"github.com/trapeze-run/trapeze/internal/inside"
	"github.com/trapeze-run/trapeze/internal/store"
	"github.com/trapeze-run/trapeze/internal/store/admin"
	storeview "github.com/trapeze-run/trapeze/internal/store/view"
	"github.com/trapeze-run/trapeze/internal/telemetry"
	"github.com/trapeze-run/trapeze/job"
)

// exportRoutes lists the routes that stream all stored jobs and events. They require permission to read all jobs.
var exportRoutes = []Route{
	{Method: http.MethodGet, Path: "/admin/export/jobs", Needs: access.JobsRead, Summary: "Stream every job, oldest first, one JSON object per line, from one snapshot",
		media: ndjson, do: exportJobs},
	{Method: http.MethodGet, Path: "/admin/export/events", Needs: access.JobsRead, Summary: "Stream every event, one JSON object per line, from one snapshot",
		media: ndjson, do: exportEvents},
}

const ndjson = "application/x-ndjson"

// exporting limits the number of concurrent exports in a process, because each export occupies a connection until its reader has finished.
var exporting = make(chan struct{}, 2)

// exportTimeout limits how long a reader may stall. exportMinRate is the rate that a reader must sustain, in bytes per second.
const (
	exportTimeout = 30 * time.Second
	exportMinRate = 256 << 10
)

func exportJobs(c *call) (any, error) {
	return nil, export(c, "jobs", func(ctx context.Context, from *store.Store, tx pgx.Tx, lines *json.Encoder) error {
		shows := c.secrets.View(c.caller)
		return storeview.ExportJobs(ctx, from, tx, func(j job.Job) error {
			shown := shows.HideJob(j)
			if err := c.secrets.Note(c.Request(), shows, "jobs"); err != nil { // audit the access once, before the first secret is sent
				return err
			}
			return lines.Encode(shown)
		})
	})
}

func exportEvents(c *call) (any, error) {
	return nil, export(c, "events", func(ctx context.Context, from *store.Store, tx pgx.Tx, lines *json.Encoder) error {
		return storeview.ExportEvents(ctx, from, tx, func(e job.Event) error { return lines.Encode(e) })
	})
}

// export audits an export of jobs or events, and streams the rows that write encodes. After an error, it aborts the connection so that the
// client cannot mistake a partial export for a complete one.
func export(c *call, what string, write func(context.Context, *store.Store, pgx.Tx, *json.Encoder) error) error {
	select {
	case exporting <- struct{}{}:
		defer func() { <-exporting }()
	default:
		return &response.Problem{Status: http.StatusServiceUnavailable, Code: "unavailable", Message: "two exports are already running: try again later"}
	}
	ctx := c.ctx()
	if !c.opts.open { // without authentication, the caller has no identity to audit
		if err := c.door.audit(ctx, admin.AuditEntry{Actor: c.caller.Name, Action: "export." + what, Target: what}); err != nil {
			return err
		}
	}
	// An export uses a separate connection, so that a slow reader does not tie up a connection that claims or commands need.
	from, err := inside.Of(c.r).Store.Beside(ctx, 1)
	if err != nil {
		return err
	}
	defer from.Close()
	response := c.Response()
	err = storeview.Snapshot(ctx, from, func(tx pgx.Tx) error {
		response.Header().Set(echo.HeaderContentType, ndjson)
		buffered := bufio.NewWriterSize(&patientWriter{response, http.NewResponseController(response.Writer), exportTimeout}, 1<<16)
		lines := json.NewEncoder(buffered)
		lines.SetEscapeHTML(false)
		if err := write(ctx, from, tx, lines); err != nil {
			return err
		}
		return buffered.Flush()
	})
	if err != nil && response.Committed {
		c.reportFailure(c.Request(), err)
		slog.WarnContext(ctx, "export interrupted", "route", c.Path(), telemetry.Err, err)
		panic(http.ErrAbortHandler) // tells net/http to abort a partial response
	}
	return err
}

// patientWriter limits how long its reader may stall rather than the total response time. A slow reader uses up its allowance and regains
// it by reading faster than exportMinRate. An export holds a snapshot, which keeps dead rows throughout the database from being removed.
// The allowance stops a client from holding the snapshot open by reading only occasionally.
type patientWriter struct {
	to    http.ResponseWriter
	clock *http.ResponseController
	left  time.Duration // how much longer the reader may stall
}

func (p *patientWriter) Write(b []byte) (int, error) {
	began := time.Now()
	_ = p.clock.SetWriteDeadline(began.Add(p.left)) // a host's custom writer may not support deadlines
	n, err := p.to.Write(b)
	if err == nil {
		_ = p.clock.Flush()
	}
	p.left = min(p.left-time.Since(began)+time.Duration(n)*time.Second/exportMinRate, exportTimeout)
	if err == nil && p.left <= 0 {
		err = errSlowClient
	}
	return n, err
}
