package store

// The claims of a remote worker are those of any pod, by the pod that serves its latest stream alone: one that has not heard yet that the
// worker has gone elsewhere would claim beside the other for the same slots. Plans: as of the claims, and a probe of remote_workers_pkey.
const (
	guestClaimSQL    = claimPick + latestStream + `$6::bigint` + claimReached + claimTailSQL
	guestSinceSQL    = claimSincePick + latestStream + `$12::bigint` + claimSinceReached + claimTailSQL
	guestSubjectsSQL = claimSubjectsPick + latestStream + `$5::bigint` + claimSubjectsReached + claimTailSQL

	latestStream = ` and (select w.stream from trapeze.remote_workers w where w.boot = $1) = `
)

// OfStream returns the store as the pod uses it that serves a remote worker's stream of a number: its claims find nothing once there is a
// newer one, and its questions for slots come after all those of the streams before it.
func (s *Store) OfStream(stream int64) *Store {
	of := *s
	of.stream = stream
	return &of
}
