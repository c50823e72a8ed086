package main

import (
	"context"
	"encoding/json"
	"io"
	"slices"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
)

// soakTables lists the sampled tables. The sizes of a table's partitions are added up.
var soakTables = []string{"jobs", "live", "done", "job_events"}

// soakSample holds the values at one point in time and the changes since the previous sample.
type soakSample struct {
	At      float64              `json:"at_s"` // seconds since the start of the soak
	Seconds float64              `json:"seconds"`
	Jobs    int                  `json:"jobs"` // number of jobs started
	Rate    float64              `json:"jobs_per_s"`
	P50     float64              `json:"due_to_start_p50_ms"`
	P99     float64              `json:"due_to_start_p99_ms"`
	Poll    float64              `json:"poll_ms,omitempty"` // how long a claim that finds no job takes
	Held    bool                 `json:"snapshot_held"`
	Tables  map[string]soakTable `json:"tables"`

	latencies []float64
}

// soakTable is the size of a table in bytes, and the server's estimate of its dead tuples.
type soakTable struct {
	Heap  int64 `json:"heap_bytes"`
	Index int64 `json:"index_bytes"`
	Dead  int64 `json:"dead_tuples"`
}

// soakWatch takes samples and writes them to out.
type soakWatch struct {
	g       *rig
	load    *soakLoad
	length  time.Duration
	every   time.Duration
	out     io.Writer // receives JSON lines
	tables  []string
	poll    func(context.Context) (float64, error) // times a claim that finds no job; may be nil
	hours   float64                                // simulated hours to show in the chart; 0 shows the real time
	title   string                                 // the chart's title
	say     func(format string, args ...any)
	held    atomic.Bool // the snapshot is held
	samples []soakSample
}

func (w *soakWatch) run(ctx context.Context, began time.Time) error {
	conn, err := pgx.Connect(ctx, w.g.url) // a separate connection, so that sampling does not wait for the load
	if err != nil {
		return err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	write := json.NewEncoder(w.out)
	last := began
	for next := began.Add(w.every); !next.After(began.Add(w.length)); next = next.Add(w.every) {
		if err := soakUntil(ctx, next); err != nil {
			return err
		}
		s := soakSample{latencies: w.load.take(), Held: w.held.Load()}
		now := time.Now()
		slices.Sort(s.latencies)
		s.At, s.Seconds, s.Jobs = now.Sub(began).Seconds(), now.Sub(last).Seconds(), len(s.latencies)
		s.Rate, s.P50, s.P99 = float64(s.Jobs)/s.Seconds, quantile(s.latencies, 0.5), quantile(s.latencies, 0.99)
		last = now
		if s.Tables, err = soakSizes(ctx, conn, w.tables); err != nil {
			return err
		}
		if w.poll != nil {
			if s.Poll, err = w.poll(ctx); err != nil {
				return err
			}
		}
		if err := write.Encode(s); err != nil {
			return err
		}
		w.samples = append(w.samples, s)
		if len(w.samples)%15 == 0 {
			w.say("%.0f of %.0f s, %.0f jobs/s, p99 %.1f ms", s.At, w.length.Seconds(), s.Rate, s.P99)
		}
	}
	return nil
}

// soakSizesSQL adds up the sizes of a table's partitions. A partition that is being dropped has no size.
const soakSizesSQL = `
select t.name, coalesce(sum(pg_relation_size(c.oid)), 0)::bigint, coalesce(sum(pg_indexes_size(c.oid)), 0)::bigint,
	coalesce(sum(pg_stat_get_dead_tuples(c.oid)), 0)::bigint
from unnest($1::text[]) as t(name)
join pg_class c on c.relnamespace = 'trapeze'::regnamespace and c.relkind = 'r'
	and (c.relname = t.name or c.relname ~ ('^' || t.name || '_.*[0-9]{8}$'))
group by t.name`

func soakSizes(ctx context.Context, conn *pgx.Conn, tables []string) (map[string]soakTable, error) {
	rows, err := conn.Query(ctx, soakSizesSQL, tables)
	if err != nil {
		return nil, err
	}
	sizes := map[string]soakTable{}
	var name string
	var t soakTable
	_, err = pgx.ForEachRow(rows, []any{&name, &t.Heap, &t.Index, &t.Dead}, func() error {
		sizes[name] = t
		return nil
	})
	return sizes, err
}
