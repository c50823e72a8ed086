package store

import "sync"

// Effect is a statement's effect on the claims that it names. It is used by code that monitors a pod's connections.
type Effect int

const (
	NoEffect Effect = iota
	Holds           // locks the claim until its transaction ends
	Keeps           // stores a checkpoint of the claim
	Ends            // ends one or more claims, permanently or until the next attempt
)

// Effects returns the statements that affect claims with a running handler, as they are sent for the given schema. It omits statements that
// run only in transactions that have already locked a claim. The first argument of each statement contains the job ids (see [JobsOf]).
func Effects(schema string) map[string]Effect {
	db := &Database{schema: schema, named: &sync.Map{}}
	effects := map[string]Effect{db.In(holdSQL.text): Holds, db.In(holdToEndSQL.text): Holds, db.In(holdGroupSQL.text): Holds, db.In(keepSQL.text): Keeps}
	for _, sql := range []*statement{endSQL, endOneSQL, endBranchesSQL, finishSQL, finishOneSQL, finishBranchesSQL, parkSQL} {
		effects[db.In(sql.text)] = Ends
	}
	return effects
}

// JobsOf extracts the job ids from the arguments of a statement listed by [Effects].
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
