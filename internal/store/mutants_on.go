//go:build mutants

package store

import (
	"fmt"
	"regexp"
	"strings"

	"github.com/trapeze-run/trapeze/internal/mutant"
)

// rewrite makes a mistake in one statement: the text old, which must occur in it exactly once, becomes new.
type rewrite struct {
	name     string
	sql      any // a string or a *statement, in which old and new name the arguments
	old, new string
}

// texts are the statement and the wrong one, as PostgreSQL gets them.
func (r rewrite) texts(mutant string) (is, becomes string) {
	is, old, wrong := "", r.old, r.new
	switch sql := r.sql.(type) {
	case string:
		is = sql
	case *statement:
		is = sql.text
		for i, name := range sql.names {
			named := regexp.MustCompile("@" + name + `\b`)
			old, wrong = named.ReplaceAllLiteralString(old, fmt.Sprintf("$%d", i+1)), named.ReplaceAllLiteralString(wrong, fmt.Sprintf("$%d", i+1))
		}
	}
	if n := strings.Count(is, old); n != 1 {
		panic(fmt.Sprintf("mutant %s: the statement %q holds %q %d times, want once: mend the mutant's text in internal/store/mutants_on.go",
			mutant, r.name, old, n))
	}
	return is, strings.Replace(is, old, wrong, 1)
}

// The conditions by which a worker's writes find their row, and what two mutants leave of them. What a condition no longer
// compares is still a parameter, whose type PostgreSQL must be told.
const (
	ownsRow       = "id = @id and fence = @fence and pod = @boot"
	ownsAnyFence  = "id = @id and state = 'running' and @fence::bigint is not null and @boot::uuid is not null"
	ownsAnyPod    = "id = @id and fence = @fence and @boot::uuid is not null"
	endsOwn       = "where l.fence = e.fence and l.pod = @boot::uuid\n\tfor update"
	tellsOwn      = "where l.fence = e.fence and l.pod = e.pod\n\torder by"
	handsBackOwn  = "where l.fence = w.fence and l.pod = @boot and not l.cancel_requested"
	leaseIsOver   = "p.lease_until < now() or"
	leaseGoesOn   = "lease_until = case when @renew then now() + @lease::bigint * interval '1 millisecond' else lease_until end\n\twhere boot = @boot"
	stillOpen     = leaseGoesOn + " and closed_at is null"
	tookSubject   = "and (o.subject = '' or o.id in (select job_id from taken))"
	countsOnce    = "then 0 else f.open - c.ended end,"
	itsClaims     = "where l.fence = w.fence and l.pod = @boot::uuid"
	takesTurns    = " for update of s skip locked"
	bornOnSubject = "when m.free and (m.subject = '' or m.handed or m.id in (select job_id from born_runs)) then"
)

// rewrites are the mistakes that are made in statements.
var rewrites = map[string][]rewrite{
	mutant.NoFence: {
		{"finish", finishSQL, endsOwn, "where l.state = 'running'\n\tfor update"},
		{"end", endSQL, endsOwn, "where l.state = 'running'\n\tfor update"},
		{"hand back", handBackSQL, handsBackOwn, "where l.state = 'running' and not l.cancel_requested"},
		{"park", parkSQL, ownsRow, ownsAnyFence},
		{"hold", holdSQL, ownsRow, ownsAnyFence},
		{"progress", progressSQL, ownsRow, ownsAnyFence},
		{"keep", keepSQL, ownsRow, ownsAnyFence},
		{"emit", emitSQL, ownsRow, ownsAnyFence},
		{"emit many", emitManySQL, tellsOwn, "where l.state = 'running'\n\torder by"},
	},
	mutant.FenceWithoutPod: {
		{"finish", finishSQL, endsOwn, "where l.fence = e.fence\n\tfor update"},
		{"end", endSQL, endsOwn, "where l.fence = e.fence\n\tfor update"},
		{"hand back", handBackSQL, handsBackOwn, "where l.fence = w.fence and not l.cancel_requested"},
		{"park", parkSQL, ownsRow, ownsAnyPod},
		{"hold", holdSQL, ownsRow, ownsAnyPod},
		{"progress", progressSQL, ownsRow, ownsAnyPod},
		{"keep", keepSQL, ownsRow, ownsAnyPod},
		{"emit", emitSQL, ownsRow, ownsAnyPod},
		{"emit many", emitManySQL, tellsOwn, "where l.fence = e.fence\n\torder by"},
	},
	mutant.EventGap: {
		{"recover", recoverPageSQL, "'boot', pod, 'crashes', crashes) from again", "'boot', pod, 'crashes', crashes) from again where false"},
	},
	mutant.SubjectMutexOff: {
		{"claim", claimSQL, tookSubject, ""},
		{"claim subjects", claimSubjectsSQL, tookSubject, ""},
		{"claim since", claimSinceSQL, tookSubject, ""},
		{"enqueue", enqueueSQL, bornOnSubject, "when m.free then"},
		{"enqueue since", enqueueSinceSQL, bornOnSubject, "when m.free then"},
		{"finish", finishSQL, bornOnSubject, "when m.free then"},
	},
	mutant.RecoveryOfTheLiving: {
		{"close lapsed", closeLapsedSQL, leaseIsOver, "p.lease_until < now() + @lease::bigint * interval '1 millisecond' or"},
	},
	mutant.GrantsUncounted: {
		{"settle slots", settleSlotsSQL, "select k.slots - k.granted as spare", "select k.slots as spare"},
	},
	mutant.DoubleCount: {
		{"end branches", endBranchesSQL, countsOnce, "then 0 else greatest(f.open - 2 * c.ended, 0) end,"},
		{"finish branches", finishBranchesSQL, countsOnce, "then 0 else greatest(f.open - 2 * c.ended, 0) end,"},
	},
	mutant.BlindFire: {
		{"take schedules", takeSchedulesSQL, takesTurns, ""},
	},
	mutant.StaleReport: {
		{"adopt", adoptSQL, itsClaims, "where l.state = 'running' and w.fence is not null and @boot::uuid is not null"},
		{"finish", finishSQL, endsOwn, "where l.fence = e.fence\n\tfor update"},
		{"end", endSQL, endsOwn, "where l.fence = e.fence\n\tfor update"},
	},
	mutant.ZombieHeartbeat: {
		{"heartbeat", heartbeatSQL, stillOpen, "closed_at = null, closed = null, swept_at = null, " + leaseGoesOn},
	},
}

// mutants are the statements that a mutant changes, as they are and as they become.
var mutants = func() map[string]map[string]string {
	all := map[string]map[string]string{}
	for name, list := range rewrites {
		all[name] = map[string]string{}
		for _, r := range list {
			is, becomes := r.texts(name)
			all[name][is] = becomes
		}
	}
	return all
}()

// mutated returns a statement with the mistake that the process makes in it: see package mutant.
func mutated(sql string) string {
	for name, changed := range mutants {
		if to, ok := changed[sql]; ok && mutant.Is(name) {
			return to
		}
	}
	return sql
}
