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
	"github.com/trapeze-run/trapeze/internal/store"
	"github.com/trapeze-run/trapeze/internal/telemetry"
	"github.com/trapeze-run/trapeze/job"
)

// exportRoutes give everything away that is kept, so they need the permission to read the jobs of all.
var exportRoutes = []Route{
	{http.MethodGet, "/admin/export/jobs", access.JobsRead, "Stream every job, oldest first, one JSON object a line, from one snapshot", (*server).exportJobs},
	{http.MethodGet, "/admin/export/events", access.JobsRead, "Stream every event, one JSON object a line, from one snapshot", (*server).exportEvents},
}

// exporting holds the exports that a process has under way: each has a connection of its own for as long as its reader takes.
var exporting = make(chan struct{}, 2)

// exportPatience is how long a reader may rest, exportLeast how many bytes a second he must take beside that.
const (
	exportPatience = 30 * time.Second
	exportLeast    = 256 << 10
)

func (s *server) exportJobs(c echo.Context) error {
	return s.export(c, func(ctx context.Context, from *store.Store, tx pgx.Tx, lines *json.Encoder) error {
		shows := s.view(caller(c))
		return from.ExportJobs(ctx, tx, func(j job.Job) error {
			shown := shows.job(j)
			if err := s.readings.note(c.Request(), shows, "jobs"); err != nil { // once, before the first secret
				return err
			}
			return lines.Encode(shown)
		})
	})
}

func (s *server) exportEvents(c echo.Context) error {
	return s.export(c, func(ctx context.Context, from *store.Store, tx pgx.Tx, lines *json.Encoder) error {
		return from.ExportEvents(ctx, tx, func(e job.Event) error { return lines.Encode(e) })
	})
}

// export streams what write encodes. An error after the first bytes breaks the connection off, so that nobody takes a part for the
// whole.
func (s *server) export(c echo.Context, write func(context.Context, *store.Store, pgx.Tx, *json.Encoder) error) error {
	select {
	case exporting <- struct{}{}:
		defer func() { <-exporting }()
	default:
		return &problem{status: http.StatusServiceUnavailable, code: "unavailable", message: "two exports are under way already: try again later"}
	}
	ctx := c.Request().Context()
	// A slow reader keeps no connection that claims or commands wait for.
	from, err := s.r.Store().Beside(ctx, 1)
	if err != nil {
		return err
	}
	defer from.Close()
	response := c.Response()
	err = from.Snapshot(ctx, func(tx pgx.Tx) error {
		response.Header().Set(echo.HeaderContentType, "application/x-ndjson")
		buffered := bufio.NewWriterSize(&patient{response, http.NewResponseController(response.Writer), exportPatience}, 1<<16)
		lines := json.NewEncoder(buffered)
		lines.SetEscapeHTML(false)
		if err := write(ctx, from, tx, lines); err != nil {
			return err
		}
		return buffered.Flush()
	})
	if err != nil && response.Committed {
		s.failed(c.Request(), err)
		slog.WarnContext(ctx, "export broken off", "route", c.Path(), telemetry.Err, err)
		panic(http.ErrAbortHandler) // net/http's way to end an answer that is not whole
	}
	return err
}

// patient gives the reader of an answer time for each write, whatever the server's limit for a whole answer is. Who is slow uses it up,
// and gets it back by reading faster than exportLeast: an export holds a snapshot, behind which nothing is cleaned up anywhere in the
// database, so nobody may make one last by reading now and then.
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
