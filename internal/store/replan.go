package store

import (
	"context"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

const (
	// planSlow is how long a statement may take before its plan is suspected.
	planSlow = 100 * time.Millisecond
	// planRest is the time between two rounds of planning.
	planRest = 5 * time.Second
)

// plans has connections plan their statements anew when one was slow. A plan stays in use until its tables are next
// analysed; one that was made while they were as good as empty may read them whole for every row, when a burst has filled
// them since, and 20,000 jobs took a minute. Whatever else was slow, planning again costs a connection some milliseconds.
type plans struct {
	mu    sync.Mutex
	round int
	at    time.Time
	slow  time.Duration
}

// plansOf is the key of the round in which a connection has discarded its plans.
const plansOf = "trapeze plans"

// ran takes note of how long a statement took, and reports whether it begins a new round of planning.
func (p *plans) ran(took time.Duration) (anew bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if took < p.slow || time.Since(p.at) < planRest {
		return false
	}
	p.round++
	p.at = time.Now()
	return true
}

// analyzeEmptiedSQL analyzes tables that were empty when they were last analyzed: to plan anew does not help there, for the planner goes on
// to take them for empty, unless their file is empty too. Plan: catalogs only.
const analyzeEmptiedSQL = `select trapeze.analyze_emptied()`

// analyzeFor bounds an analysis of tables that were empty: these are of some megabytes.
const analyzeFor = 2 * time.Second

// suspect takes note of how long a statement took. One that begins a new round of planning has the tables analyzed that the planner takes
// for empty. A role that may not do that goes without, until autovacuum comes by.
func (db *Database) suspect(ctx context.Context, took time.Duration) {
	if !db.plans.ran(took) || db.steady { // which would open another connection
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), analyzeFor)
	defer cancel()
	_, _ = db.pool.Exec(ctx, db.In(analyzeEmptiedSQL), pgx.QueryExecModeSimpleProtocol)
}

func (p *plans) now() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.round
}

// watch makes connections discard their plans before they are used in a new round. A hook of the host's goes first.
func (p *plans) watch(config *pgxpool.Config) {
	//lint:ignore SA1019 a host may have set the older hook
	prepare, before := config.PrepareConn, config.BeforeAcquire
	config.PrepareConn = func(ctx context.Context, conn *pgx.Conn) (bool, error) {
		switch {
		case prepare != nil:
			if ok, err := prepare(ctx, conn); !ok || err != nil {
				return ok, err
			}
		case before != nil:
			if !before(ctx, conn) {
				return false, nil
			}
		}
		data, round := conn.PgConn().CustomData(), p.now()
		if seen, _ := data[plansOf].(int); seen == round {
			return true, nil
		}
		data[plansOf] = round
		_, err := conn.Exec(ctx, `discard plans`, pgx.QueryExecModeSimpleProtocol)
		return err == nil, nil // a connection that cannot is broken: the pool makes another
	}
}
