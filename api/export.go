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

// exportRoutes return everything that is kept, so they need the permission to read all jobs.
var exportRoutes = []Route{
	{Method: http.MethodGet, Path: "/admin/export/jobs", Needs: access.JobsRead, Summary: "Stream every job, oldest first, one JSON object per line, from one snapshot",
		media: ndjson, do: exportJobs},
	{Method: http.MethodGet, Path: "/admin/export/events", Needs: access.JobsRead, Summary: "Stream every event, one JSON object per line, from one snapshot",
		media: ndjson, do: exportEvents},
}

const ndjson = "application/x-ndjson"

// exporting limits the exports of a process: each keeps a connection for as long as its reader takes.
var exporting = make(chan struct{}, 2)

// exportPatience is the time limit for a reader that rests, exportLeast the rate in bytes a second at which it must read otherwise.
const (
	exportPatience = 30 * time.Second
	exportLeast    = 256 << 10
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

// export streams what write encodes. An error after the first bytes breaks the connection off, so that no client takes a part for the
// whole.
func export(c *call, write func(context.Context, *store.Store, pgx.Tx, *json.Encoder) error) error {
	select {
	case exporting <- struct{}{}:
		defer func() { <-exporting }()
	default:
		return &problem{status: http.StatusServiceUnavailable, code: "unavailable", message: "two exports are already running: try again later"}
	}
	ctx := c.ctx()
	// A slow reader keeps no connection that claims or commands wait for.
	from, err := inside.Of(c.r).Store.Beside(ctx, 1)
	if err != nil {
		return err
	}
	defer from.Close()
	response := c.Response()
	err = storeview.Snapshot(ctx, from, func(tx pgx.Tx) error {
		response.Header().Set(echo.HeaderContentType, ndjson)
		buffered := bufio.NewWriterSize(&patient{response, http.NewResponseController(response.Writer), exportPatience}, 1<<16)
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

// patient gives the reader of an answer time for each write, in place of the server's limit for a whole answer. A slow reader uses it up,
// and gets it back by reading faster than exportLeast: an export holds a snapshot, which keeps dead rows in all of the
// database, so a reader cannot make one last by reading now and then.
type patient struct {
	to    http.ResponseWriter
	clock *http.ResponseController
	left  time.Duration // how long the reader may still take
}

func (p *patient) Write(b []byte) (int, error) {
	began := time.Now()
	_ = p.clock.SetWriteDeadline(began.Add(p.left)) // a host's own writer may have none
	n, err := p.to.Write(b)
	if err == nil {
		_ = p.clock.Flush()
	}
	p.left = min(p.left-time.Since(began)+time.Duration(n)*time.Second/exportLeast, exportPatience)
	if err == nil && p.left <= 0 {
		err = errNotTaken
	}
	return n, err
}
