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

	"github.com/trapeze-run/trapeze/internal/access"
	"github.com/trapeze-run/trapeze/internal/inside"
	"github.com/trapeze-run/trapeze/internal/store"
	storeview "github.com/trapeze-run/trapeze/internal/store/view"
	"github.com/trapeze-run/trapeze/internal/telemetry"
	"github.com/trapeze-run/trapeze/job"
)

// exportRoutes return all stored jobs and events, so they need the permission to read all jobs.
var exportRoutes = []Route{
	{Method: http.MethodGet, Path: "/admin/export/jobs", Needs: access.JobsRead, Summary: "Stream every job, oldest first, one JSON object per line, from one snapshot",
		media: ndjson, do: exportJobs},
	{Method: http.MethodGet, Path: "/admin/export/events", Needs: access.JobsRead, Summary: "Stream every event, one JSON object per line, from one snapshot",
		media: ndjson, do: exportEvents},
}

const ndjson = "application/x-ndjson"

// exporting limits the concurrent exports of a process: each holds a connection for as long as its reader takes.
var exporting = make(chan struct{}, 2)

// exportTimeout is the limit for a reader that stalls. exportLeast is the minimum rate of a reader, in bytes a second.
const (
	exportTimeout = 30 * time.Second
	exportMinRate = 256 << 10
)

func exportJobs(c *call) (any, error) {
	return nil, export(c, func(ctx context.Context, from *store.Store, tx pgx.Tx, lines *json.Encoder) error {
		shows := c.secrets.view(c.caller)
		return storeview.ExportJobs(ctx, from, tx, func(j job.Job) error {
			shown := shows.hideJob(j)
			if err := c.secrets.readings.note(c.Request(), shows, "jobs"); err != nil { // once, before the first secret
				return err
			}
			return lines.Encode(shown)
		})
	})
}

func exportEvents(c *call) (any, error) {
	return nil, export(c, func(ctx context.Context, from *store.Store, tx pgx.Tx, lines *json.Encoder) error {
		return storeview.ExportEvents(ctx, from, tx, func(e job.Event) error { return lines.Encode(e) })
	})
}

// export streams the rows that write encodes. After an error it aborts the connection, so that no client takes a partial export for a
// complete one.
func export(c *call, write func(context.Context, *store.Store, pgx.Tx, *json.Encoder) error) error {
	select {
	case exporting <- struct{}{}:
		defer func() { <-exporting }()
	default:
		return &problem{status: http.StatusServiceUnavailable, code: "unavailable", message: "two exports are already running: try again later"}
	}
	ctx := c.ctx()
	// A separate connection, so that a slow reader does not hold one that claims or commands wait for.
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
		panic(http.ErrAbortHandler) // net/http's way to end an answer that is not whole
	}
	return err
}

// patientWriter limits the time of each write instead of the server's limit for a whole answer. A slow reader uses the time up, and regains it
// by reading faster than exportLeast. An export holds a snapshot, which keeps dead rows in the whole database. A reader can therefore not
// prolong one by reading now and then.
type patientWriter struct {
	to    http.ResponseWriter
	clock *http.ResponseController
	left  time.Duration // how long the reader may still stall
}

func (p *patientWriter) Write(b []byte) (int, error) {
	began := time.Now()
	_ = p.clock.SetWriteDeadline(began.Add(p.left)) // a host's custom writer may not support it
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
