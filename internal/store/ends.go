package store

// EndJSON returns the [job.End] of a row g of a job that a statement deletes, as an expression of SQL: its state, reason, error and class are
// expressions too. Plan: jobs_pkey, one row.
func EndJSON(state, reason, failure, class string) string {
	return `json_build_object('id', g.id::text, 'pipeline_id', (select j.pipeline_id::text from trapeze.jobs j where j.id = g.id), 'kind', g.kind,
		'lane', g.lane, 'subject', g.subject, 'attempt', g.attempt, 'state', ` + state + `, 'reason', ` + reason + `, 'error', ` + failure + `,
		'error_class', ` + class + `)`
}
