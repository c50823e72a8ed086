package store

import (
	"context"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

const (
	// planSlow is the execution time above which a statement's plan is suspected to be bad.
	planSlow = 100 * time.Millisecond
	// planRest is the minimum interval between two rounds of replanning.
	planRest = 5 * time.Second
)

// plans makes connections replan their statements after a slow statement. A plan stays in use until its tables are next analyzed. A plan
// that was made for almost empty tables may read whole tables for every row once a burst has filled them. In one case, 20,000 jobs took a
// minute. If the statement was slow for a different reason, replanning only costs each connection a few milliseconds.
type plans struct {
	mu    sync.Mutex
	round int
	at    time.Time
	slow  time.Duration
}

// plansOf is the key under which a connection stores the round in which it last discarded its plans.
const plansOf = "trapeze plans"

// ran records how long a statement took, and reports whether a new round of replanning begins.
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

// analyzeEmptiedSQL analyzes tables that were empty when they were last analyzed. Replanning alone does not help, because the planner still
// considers those tables empty, unless their files are empty too. Plan: catalogs only.
const analyzeEmptiedSQL = `select trapeze.analyze_emptied()`

// analyzeFor is the timeout for analyzing tables that were empty. These tables are only a few megabytes in size.
const analyzeFor = 2 * time.Second

// suspect records how long a statement took. If a new round of replanning begins, suspect analyzes the tables that the planner considers
// empty. If the role lacks the privilege, analyzing them is left to autovacuum.
func (db *Database) suspect(ctx context.Context, took time.Duration) {
	if !db.plans.ran(took) || db.steady { // a steady pool would have to open another connection
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

// watch makes each connection discard its plans before the connection is first used in a new round. The host's hook runs first.
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
		return err == nil, nil // after an error, the connection is broken and the pool opens another
	}
}
