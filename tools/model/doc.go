// Package model explores the protocol by which jobs move between the tables parked, live and done. It visits every interleaving of the
// protocol's statements within a bound, without a database.
//
//	submit, next step, retry
//	     │      │
//	     │      ▼        promote, approve         admit, or heir of an end: guard inserted or inherited
//	     │   parked ─────────────────▶ parked ──────────────────┐
//	     │   (scheduled, retrying,    (subject)                 │
//	     │    approval)   │               ▲ changes places      │
//	     │                └──────────┐    │ with an heir        ▼          claim
//	     └─────────── guard inserted ┴────┴──────────────▶ live: pending ───────▶ live: running ── end, cancel, recover ──▶ done ── prune ──▶
//	                                                             ▲                 │     │
//	                                                             └ hand back, recover    └── retry of the handler ──▶ parked (retrying)
//
// A state consists of the rows of up to four jobs, the guards of two subjects and the state of a lane; of row locks and uncommitted writes; and
// of a client, a caller with its own transaction, an operator and two pods. A statement takes three or more steps, and other processes may act
// between them: it takes its snapshot; it locks rows, inserts guards one by one, and writes; it commits. As in PostgreSQL's READ COMMITTED, a
// locked row is read in its latest version. An insert with ON CONFLICT DO NOTHING waits for a transaction that has written the same
// key. The tests of this package check these rules of PostgreSQL on a server.
//
// # The protocol
//
// The guard of a kind and subject is a row with the id of the job that may run. In every committed state, a job with a subject is in live if and
// only if the guard contains its id. A job in parked never holds a guard.
//
// Rule 1. A statement makes a job pending only if it has inserted or inherited the job's guard. Otherwise it parks the job with the reason
// subject. A statement whose snapshot shows a guard does not try to insert it. A submission in a caller's transaction, or in a trigger, always
// parks: otherwise, every other statement of the subject would wait for the caller, and two callers could deadlock.
//
// Rule 2. Locks are taken in this order: rows of live; rows of parked; inserts of guards, in the order of (kind, subject); writes to guards whose
// job's row in live is locked. Only the inserts wait. Operators' statements and a hand-back also wait for the row of a job, and hold nothing
// else meanwhile. A statement whose condition a concurrent update has made false keeps the lock on the row, and does not return the row. So a change
// of the reason replaces the row in parked, and move, which updates rows in place, counts all rows of its page as locked.
//
// Rule 3. When its transaction has ended, a process runs admit, with a new snapshot, for each subject of which the transaction
//   - parked a job with the reason subject, unless it gave the subject's guard to another job;
//   - released the guard and found no heir;
//   - locked a job that stays parked with the reason subject: priority, move, an admission whose guard was taken, a rollback.
//
// It also does so after a lost reply, for all subjects of the statement: it cannot read back whether the statement found an heir. A caller's
// commit carries a NOTIFY with the subject, and the pod that receives it runs admit.
//
// Rule 4. The heir of a subject is its first parked job that no transaction has locked: jobs in open lanes come first, then the more urgent ones.
// A job's next step in the same subject competes with the heir, and wins a tie.
//
// The statements:
//
//	submit      insert the guards; insert into live or parked. A closed lane makes no difference.
//	 in a tx    insert into parked; without a subject, into live.
//	claim       lock pending rows, SKIP LOCKED; set running and fence + 1. The guard does not change.
//	end         lock rows of live by (id, fence, pod), SKIP LOCKED. Lock each subject's heir, SKIP LOCKED. Insert the guards of next steps in
//	            other subjects. Then delete from live; insert into done, or into parked for a retry; give each guard to the heir or to the
//	            next step in the subject, or delete it; move the heir to live; insert the next steps into live or parked.
//	admit       Guard free in the snapshot: lock the heir, SKIP LOCKED; insert the guard; move the heir only if the guard was inserted.
//	            Guard of a pending job: lock that row, SKIP LOCKED; lock the heir, SKIP LOCKED. If the heir's lane is open and the heir
//	            comes before the holder by rule 4, the guard gets the heir's id, and the two jobs change places.
//	promote     lock the due row, SKIP LOCKED; insert the guard; delete the row, and insert it into live, or again into parked with the
//	            reason subject (rule 2).
//	approve     as promote, for one row, for whose lock it waits.
//	cancel      lock the row in live or parked, and start again if it has moved. Parked: end it. Pending: as end, with an heir. Running: set
//	            the request; the guard stays.
//	priority    parked: update in place, and keep the reason. Pending: replace the row, and keep the guard.
//	move        parked or pending: update in place; keep the reason and the guard.
//	lane        update the lane. No admission follows its opening.
//	hand back   lock the row by (id, fence, pod); set pending. The guard stays.
//	recover     lock rows of a closed pod, SKIP LOCKED; set pending, and the guard stays. Or end them, as end.
//	retry       (of an operator) lock the row of done; delete it; then as submit.
//	prune       lock the row of done, SKIP LOCKED; delete it.
//	net         admit, in pages, for the subjects of parked jobs; promote; recover.
//
// # Results
//
// Without the net, as long as no pod crashes, a parked job never waits for ever while its guard is free, even if replies are lost. With the net,
// every job ends after crashes at any step. With the net alone, without heirs and without rule 3, every job ends too.
//
// Only the net is certain to take the guard from a pending job. An admission after a submission usually does so at once, but skips a row that a
// claim or an operator has locked, and a lane can close at any time.
//
// These parts of the protocol come from traces of the model:
//   - An admission that did not get the guard must be repeated. Meanwhile, an end and the admission after it may have skipped the row.
//   - A change of the priority, a move, a rollback, and a second promotion of the same job hide a parked row in the same way.
//   - An end inserts the guards of next steps before it writes its own guards. Otherwise it can deadlock with a batch of submissions.
//   - A job in a closed lane takes a free guard. If it parked instead, all such jobs would have to be found when the lane opens.
//
// The bound is two subjects, three jobs (four for hand-offs), two commands and two faults; the scenarios in the tests list the combinations.
// Unique keys and fan-outs are not part of the model. A transaction can wait for their rows: for keys before it locks parked rows, and for
// fan-outs after it has written guards.
package model
