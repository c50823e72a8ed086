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
	// planRest is the minimum time between two rounds of planning.
	planRest = 5 * time.Second
)

// plans makes connections plan their statements again after one was slow. A plan stays in use until its tables are next analysed. A plan
// that was made while they were almost empty may read them completely for every row once a burst has filled them: 20,000 jobs took a
// minute. If the cause was different, planning again costs a connection some milliseconds.
type plans struct {
	mu    sync.Mutex
	round int
	at    time.Time
	slow  time.Duration
}

// plansOf is the key of the round in which a connection last discarded its plans.
const plansOf = "trapeze plans"

// ran records how long a statement took, and reports whether it begins a new round of planning.
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

// analyzeEmptiedSQL analyzes tables that were empty when they were last analyzed. Planning again does not help there, because the planner
// still treats them as empty, unless their file is empty too. Plan: catalogs only.
const analyzeEmptiedSQL = `select trapeze.analyze_emptied()`

// analyzeFor is the timeout for analyzing tables that were empty: these have some megabytes.
const analyzeFor = 2 * time.Second

// suspect records how long a statement took. If it begins a new round of planning, suspect analyzes the tables that the planner treats as
// empty. If the role lacks the privilege, they wait for autovacuum.
func (db *Database) suspect(ctx context.Context, took time.Duration) {
	if !db.plans.ran(took) || db.steady { // a steady pool would open another connection
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

// watch makes connections discard their plans before they are used in a new round. The host's hook runs first.
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
		return err == nil, nil // a connection that fails here is broken: the pool makes another
	}
}
