package store

import "sync"

// Effect is the effect of a statement on the claims that it names, for code that monitors a pod's connections.
type Effect int

// The effects.
const (
	NoEffect Effect = iota
	Holds           // locks the claim until its transaction ends
	Keeps           // stores a checkpoint of the claim
	Ends            // ends the claim, or several, for good or for a while
)

// Effects returns the statements that affect claims with a running handler, in the form for a schema. It omits those inside
// the transaction that holds a claim. The ids of the jobs are the first argument of each: see [JobsOf].
func Effects(schema string) map[string]Effect {
	db := &Database{schema: schema, named: &sync.Map{}}
	effects := map[string]Effect{db.In(holdSQL.text): Holds, db.In(holdToEndSQL.text): Holds, db.In(holdGroupSQL.text): Holds, db.In(keepSQL.text): Keeps}
	for _, sql := range []*statement{endSQL, endOneSQL, endBranchesSQL, finishSQL, finishOneSQL, finishBranchesSQL, parkSQL} {
		effects[db.In(sql.text)] = Ends
	}
	return effects
}

// JobsOf returns the job ids in the arguments of a statement of [Effects].
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
