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
	"github.com/trapeze-run/trapeze/internal/store/admin"
	storeview "github.com/trapeze-run/trapeze/internal/store/view"
	"github.com/trapeze-run/trapeze/internal/telemetry"
	"github.com/trapeze-run/trapeze/internal/text"
	"github.com/trapeze-run/trapeze/job"
	operators "github.com/trapeze-run/trapeze/runner/admin"
)

var retentionRoutes = []Route{
	{Method: http.MethodGet, Path: "/admin/workers/retention", Needs: access.WorkersView, Summary: "List kinds with their own retention",
		out: object("retention", listOf(of[job.Retention]())), do: listRetention},
	{Method: http.MethodPut, Path: "/admin/workers/retention/:kind/:state", Needs: access.WorkersManage, Summary: "Set how long finished jobs of a kind and state are kept",
		in: keep{}, out: of[job.RetentionChanged](), do: withBody(putRetention)},
	{Method: http.MethodDelete, Path: "/admin/workers/retention/:kind/:state", Needs: access.WorkersManage, Summary: "Remove the retention of a kind and state; the default applies",
		out: of[job.RetentionChanged](), do: deleteRetention},
}

func listRetention(c *call) (any, error) {
	found, err := c.admin().Retentions(c.ctx())
	return map[string]any{"retention": orEmpty(found)}, err
}

// keep is the body of a PUT request.
type keep struct {
	Keep *job.Seconds `json:"keep_s"` // 0 means forever
}

func putRetention(c *call, body keep) (any, error) {
	if body.Keep == nil {
		return nil, invalid("keep_s is required: seconds, or 0 for forever")
	}
	return setRetention(c, body.Keep)
}

func deleteRetention(c *call) (any, error) {
	if err := c.refuseBody(); err != nil {
		return nil, err
	}
	return setRetention(c, nil)
}

func setRetention(c *call, keep *job.Seconds) (any, error) {
	return c.admin().SetRetention(c.ctx(), c.Param("kind"), job.State(c.Param("state")), (*time.Duration)(keep))
}

var eraseRoutes = []Route{
	{Method: http.MethodPost, Path: "/admin/subjects/erase", Needs: access.JobsErase, Summary: "Erase the data of a subject's finished jobs",
		in: Erasure{}, out: of[Erased](), do: withBody(eraseSubject)},
}

// Erasure is the body of an erasure request.
type Erasure struct {
	Subject string `json:"subject"`
	Kind    string `json:"kind,omitempty"` // all kinds if empty
	DryRun  bool   `json:"dry_run,omitempty"`
	After   string `json:"after,omitempty"` // the Next value of the previous response
}

// Erased is the response to an erasure.
type Erased struct {
	Erased       int      `json:"erased"` // the number of erased jobs
	Open         int      `json:"open"`   // the number of jobs kept because they, or jobs that followed from them, are unfinished
	Sample       []string `json:"sample"` // the IDs of the first jobs counted in Open
	Schedules    []string `json:"schedules"`
	Engines      []string `json:"engines"` // the lanes' engines other than PostgreSQL; their copies of the jobs are not erased
	AuditEntries int      `json:"audit_entries"`
	Next         string   `json:"next"` // if not empty, repeat the request with this value in After
	DryRun       bool     `json:"dry_run"`
}

func eraseSubject(c *call, body Erasure) (any, error) {
	e := operators.Erasure{Subject: body.Subject, Kind: body.Kind, DryRun: body.DryRun}
	var err error
	if body.After != "" {
		if e.After, err = text.ParseID(body.After); err != nil {
			return nil, err
		}
	}
	did, err := c.admin().Erase(c.ctx(), e)
	answer := Erased{Erased: did.Jobs, Open: did.Open, Sample: idTexts(did.Sample), Schedules: orEmpty(did.Schedules), Engines: orEmpty(did.Engines), AuditEntries: did.AuditEntries, DryRun: body.DryRun}
	if did.Next != 0 {
		answer.Next = idText(did.Next)
	}
	return answer, err
}

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
		shows := c.secrets.view(c.caller)
		return storeview.ExportJobs(ctx, from, tx, func(j job.JobRow) error {
			shown := shows.hideJob(j)
			if err := c.secrets.note(c.Request(), shows, "jobs"); err != nil { // audit the access once, before the first secret is sent
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
		return &problem{Status: http.StatusServiceUnavailable, Code: "unavailable", Message: "two exports are already running: try again later"}
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
