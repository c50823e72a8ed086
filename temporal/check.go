package temporal

import (
	"context"
	"fmt"
	"net/url"
	"strings"
	"time"

	"go.temporal.io/api/workflowservice/v1"
	"go.temporal.io/sdk/client"

	"github.com/trapeze-run/trapeze/internal/store/outbox"
	"github.com/trapeze-run/trapeze/job"
	"github.com/trapeze-run/trapeze/temporal/internal/wire"
)

// openRuns returns the visibility query for a lane's open runs. It uses only search attributes that every Temporal server has.
func (e *engine) openRuns(lane string) string {
	return fmt.Sprintf(`TaskQueue = '%s' AND ExecutionStatus = 'Running'`, strings.ReplaceAll(e.names.Queue(lane), "'", "''"))
}

// Use implements [job.LaneEngine]. It queries Temporal's visibility store.
func (e *engine) Use(ctx context.Context, lanes []string) (map[string]job.EngineUse, error) {
	use := map[string]job.EngineUse{}
	for _, lane := range lanes {
		query := e.openRuns(lane)
		found, err := e.o.Client.CountWorkflow(ctx, &workflowservice.CountWorkflowExecutionsRequest{Query: query})
		if err != nil {
			return use, fmt.Errorf("count the open runs of lane %s: %w", lane, err)
		}
		use[lane] = job.EngineUse{Open: int(found.GetCount()), URL: e.page("workflows?query=" + url.QueryEscape(query))}
	}
	return use, nil
}

// Progress implements [job.EngineProgress]. It reads the latest heartbeat of the job's activity.
func (e *engine) Progress(ctx context.Context, j job.JobRow) (*job.Progress, error) {
	found, err := e.o.Client.DescribeWorkflowExecution(ctx, e.names.Workflow(j.ID, outbox.EpochOf(j.Fence)), "")
	if err != nil {
		return nil, err
	}
	for _, a := range found.GetPendingActivities() {
		var details wire.Details
		if a.GetHeartbeatDetails() == nil {
			continue
		}
		if err := e.o.DataConverter.FromPayloads(a.GetHeartbeatDetails(), &details); err != nil {
			return nil, err
		}
		if details.Progress != (job.Progress{}) {
			return &details.Progress, nil
		}
	}
	return nil, nil
}

// minRetention is the recommended minimum retention of closed workflows. The outbox rejects duplicates even after a workflow has been
// deleted, but the pages of deleted runs are gone.
const minRetention = 24 * time.Hour

// Check implements [job.LaneEngine].
func (e *engine) Check(ctx context.Context) []job.EngineFinding {
	fail := func(says, do string) []job.EngineFinding {
		return []job.EngineFinding{{Status: "fail", Says: says, Do: do}}
	}
	if _, err := e.o.Client.CheckHealth(ctx, &client.CheckHealthRequest{}); err != nil {
		return fail("the server does not answer: "+job.Storable(err.Error(), 200), "check the address of the client and the frontend service; jobs wait in the outbox until then")
	}
	n, err := e.o.Client.WorkflowService().DescribeNamespace(ctx, &workflowservice.DescribeNamespaceRequest{Namespace: e.o.Namespace})
	if err != nil {
		return fail(fmt.Sprintf("namespace %s: %s", e.o.Namespace, job.Storable(err.Error(), 200)),
			fmt.Sprintf("create it: temporal operator namespace create --namespace %s --retention 3d", e.o.Namespace))
	}
	list := []job.EngineFinding{{Status: "ok", Says: "connected to namespace " + e.o.Namespace}}
	if kept := n.GetConfig().GetWorkflowExecutionRetentionTtl().AsDuration(); kept < minRetention {
		list = append(list, job.EngineFinding{Status: "warn", Says: fmt.Sprintf("closed runs are kept for %s: links to them break early", kept),
			Do: fmt.Sprintf("temporal operator namespace update --namespace %s --retention 3d", e.o.Namespace)})
	}
	if _, err := e.o.Client.CountWorkflow(ctx, &workflowservice.CountWorkflowExecutionsRequest{Query: e.openRuns(job.DefaultLane)}); err != nil {
		list = append(list, job.EngineFinding{Status: "warn", Says: "visibility does not answer queries by TaskQueue and ExecutionStatus: " + job.Storable(err.Error(), 200),
			Do: "enable advanced visibility; until then, the dashboard does not show the open runs of lanes"})
	}
	return list
}
