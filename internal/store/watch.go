package store

import "sync"

// Effect is what a statement does to the claims that it names, for whoever watches a pod's connections from outside.
type Effect int

// The effects.
const (
	NoEffect Effect = iota
	Holds           // the claim, until its transaction ends
	Keeps           // a checkpoint of the claim
	Ends            // the claim, or several, for good or for a while
)

// Effects lists the statements that touch claims which handlers run, as they are sent for a schema, but not those inside the
// transaction of a claim that is held. The ids of the jobs are the first argument of each: see [JobsOf].
func Effects(schema string) map[string]Effect {
	db := &Database{schema: schema, named: &sync.Map{}}
	effects := map[string]Effect{db.In(holdSQL.text): Holds, db.In(holdToEndSQL.text): Holds, db.In(holdGroupSQL.text): Holds, db.In(keepSQL.text): Keeps}
	for _, sql := range []*statement{endSQL, endOneSQL, endBranchesSQL, finishSQL, finishOneSQL, finishBranchesSQL, parkSQL} {
		effects[db.In(sql.text)] = Ends
	}
	return effects
}

// JobsOf returns the ids of the jobs that a statement of [Effects] is about.
func JobsOf(args []any) []int64 {
	if len(args) == 0 {
		return nil
	}
	switch ids := args[0].(type) {
	case int64:
		return []int64{ids}
	case []int64:
		return ids
	}
	return nil
}
