package view

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/trapeze-run/trapeze/internal/store"
	"github.com/trapeze-run/trapeze/job"
)

const (
	// kindJobsSQL counts running and waiting jobs by kind. Plan: one pass over live, as for boardSlotsSQL.
	kindJobsSQL = `
select l.kind, count(*) filter (where l.state = 'running')::int, count(*) filter (where l.state = 'pending')::int,
	min(case when l.state = 'pending' and l.ready_at > 'epoch' then l.ready_at end)
from ` + dueOrRunning + ` l group by l.kind`

	// kindPodsSQL lists the open pods with the kinds that they handle. Plan: one pass over pods and remote_workers, which are small.
	kindPodsSQL = `
select p.name, p.version, p.kinds, w.pod is not null, p.limits
from trapeze.pods p left join trapeze.remote_workers w on w.pod = p.id
where p.closed_at is null order by p.name, p.started_at, p.id limit $1`
)

// mostKindPods is the maximum number of pods whose kinds are read.
const mostKindPods = 1000

// Kinds describes each kind that a pod handles, that has running or due jobs, or whose jobs ended in the period. The second result holds
// the statistics for all kinds combined.
func Kinds(ctx context.Context, s *store.Store, window time.Duration) (list []job.KindUse, ended job.Stats, err error) {
	rows, err := ReadStats(ctx, s, StatsFilter{Window: window})
	if err != nil {
		return nil, ended, err
	}
	ended = rows.By(ByKind)
	kinds := map[string]*job.KindUse{}
	of := func(kind string) *job.KindUse {
		if kinds[kind] == nil {
			kinds[kind] = &job.KindUse{Kind: kind, Ended: job.StatsOf{Name: kind}, Handlers: []job.KindHandler{}}
		}
		return kinds[kind]
	}
	for _, statsOf := range ended.Of {
		of(statsOf.Name).Ended = statsOf
	}
	if err := countKindJobs(ctx, s, of); err != nil {
		return nil, ended, err
	}
	if err := readKindPods(ctx, s, of); err != nil {
		return nil, ended, err
	}
	lanes, err := LanesUpTo(ctx, s, 0)
	if err != nil {
		return nil, ended, err
	}
	laneOf, byName := map[string]string{}, map[string]job.LaneUse{}
	for _, lane := range lanes {
		byName[lane.Name] = lane
		for _, kind := range lane.Kinds {
			laneOf[kind] = lane.Name
		}
	}
	list = []job.KindUse{}
	for _, kindUse := range kinds {
		kindUse.Lane = cmp.Or(laneOf[kindUse.Kind], "default")
		kindUse.Slots, kindUse.SlotsPerPod = byName[kindUse.Lane].Slots, byName[kindUse.Lane].SlotsPerPod
		list = append(list, *kindUse)
	}
	ended.Of = []job.StatsOf{}
	return list, ended, nil
}

func countKindJobs(ctx context.Context, s *store.Store, of func(kind string) *job.KindUse) error {
	type row struct {
		Kind             string
		Running, Waiting int
		Oldest           *time.Time
	}
	rows, err := store.Rows(ctx, s, pgx.RowToStructByPos[row], kindJobsSQL)
	if err != nil {
		return fmt.Errorf("count the jobs of each kind: %w", err)
	}
	for _, r := range rows {
		k := of(r.Kind)
		k.Running, k.Waiting, k.Oldest = r.Running, r.Waiting, r.Oldest
	}
	return nil
}

func readKindPods(ctx context.Context, s *store.Store, of func(kind string) *job.KindUse) error {
	type row struct {
		Name, Version string
		Kinds         []string
		Remote        bool
		Limits        []byte
	}
	rows, err := store.Rows(ctx, s, pgx.RowToStructByPos[row], kindPodsSQL, mostKindPods)
	if err != nil {
		return fmt.Errorf("list the kinds of the pods: %w", err)
	}
	for _, r := range rows {
		limits := map[string]*job.KindLimits{}
		if r.Limits != nil {
			if err := json.Unmarshal(r.Limits, &limits); err != nil {
				return fmt.Errorf("read the limits of pod %s: %w", r.Name, err)
			}
		}
		for _, kind := range r.Kinds {
			k, h := of(kind), job.KindHandler{Version: r.Version, Pods: []string{r.Name}, Remote: r.Remote, Limits: limits[kind]}
			same := slices.IndexFunc(k.Handlers, func(o job.KindHandler) bool {
				return o.Version == h.Version && o.Remote == h.Remote && reflect.DeepEqual(o.Limits, h.Limits)
			})
			if same < 0 {
				k.Handlers = append(k.Handlers, h)
			} else {
				k.Handlers[same].Pods = append(k.Handlers[same].Pods, r.Name)
			}
		}
	}
	return nil
}

// KindOrders lists the orders that [SortKinds] accepts.
var KindOrders = []string{"run_p95", "run_p50", "wait_p95", "wait_p50", "finished", "failed", "running", "waiting", "kind"}

// SortKinds sorts kinds by a column, with the largest value first, and then by name. An empty order means run_p95.
func SortKinds(list []job.KindUse, order string) error {
	if order == "" {
		order = KindOrders[0]
	}
	if !slices.Contains(KindOrders, order) {
		return fmt.Errorf("%w: order %q: want one of %s", job.ErrInvalid, order, strings.Join(KindOrders, ", "))
	}
	value := func(k job.KindUse) float64 {
		quantile := map[string]*job.Seconds{"run_p95": k.Ended.RunP95, "run_p50": k.Ended.RunP50, "wait_p95": k.Ended.WaitP95, "wait_p50": k.Ended.WaitP50}[order]
		if quantile != nil {
			return quantile.Duration().Seconds()
		}
		return float64(map[string]int64{"finished": k.Ended.Finished, "failed": k.Ended.Failed, "running": int64(k.Running), "waiting": int64(k.Waiting)}[order])
	}
	slices.SortFunc(list, func(a, b job.KindUse) int {
		return cmp.Or(cmp.Compare(value(b), value(a)), cmp.Compare(a.Kind, b.Kind))
	})
	return nil
}
