// Package model explores the protocol by which jobs move between the tables parked, live and done. It visits every interleaving of the
// protocol's statements within a bound, without a database. A few traces are replayed with the store's statements on a server.
//
//	submit, next step ──▶ parked ◀── retry of the handler, retry of an operator, approve, a caller's transaction
//	        │          (scheduled, retrying,             promote
//	        │            approval, subject) ────────────────┬──────────────────┐
//	        │                ▲        │  guard taken: parked (subject)         │
//	        │          yield │        └── admit ────────────┐                  │
//	        ▼                │                              ▼                  ▼
//	  guard inserted ──▶ live: pending ◀── guard inserted ─────────────────────┘
//	                         │   ▲ hand back, recover
//	                   claim ▼   │
//	                     live: running ── end, stop, recover ──▶ done ── prune ──▶
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
// only if the guard contains its id.
//
// Rule 1. A statement makes a job pending only if it has inserted the job's guard, or if the job's parent hands it over. Otherwise it parks the
// job with the reason subject. It tries to insert a guard only if its snapshot shows that the guard is free and that no parked job of the
// subject comes first. A caller's transaction, a trigger, an approval and an operator's retry take no guard: they park the job as due.
//
// Rule 2. A statement locks rows of live or parked, SKIP LOCKED; then inserts guards, in the order of (kind, subject); then writes guards whose
// jobs it has locked in live. Only the inserts wait. Operators and a hand-back also wait for the row of a job, and hold nothing else meanwhile.
// A promotion replaces the row of a job that stays parked: a late promotion would otherwise lock the row without knowing.
//
// Rule 3. The end of a handler also locks the first parked job of the subject, gives it the guard and makes it pending. After its commit, in
// statements with new snapshots, a process runs admit for the subject of each other job that it has ended. It runs admit and then yield for the subject of each job that it has parked with the reason subject, moved, handed back, or given another
// priority. After an end with a next step, it runs both for the step's subject.
//
// Admit, if the guard is free: lock the first parked job; insert the guard; move the job only if the guard was inserted. Otherwise admit and
// yield again, because the admission after a short job may have found the row locked. Jobs in open lanes come first, then the more urgent
// ones. If the first job is locked, admit does nothing: the transaction that has locked it is followed by an admission.
//
// Yield, if a pending job holds the guard and its lane is closed or it is less urgent than a parked job in an open lane: lock it, park it, free
// the guard, and run admit and yield again.
//
// The net runs admit and yield for subjects with a parked job, promotes due jobs, and recovers the jobs of closed pods.
//
// # Results
//
// As long as no pod crashes and no operator's reply is lost, every parked job is admitted without the net. With the net, every job ends after
// crashes at any step, and also with the net alone, without rule 3. No statements deadlock.
//
// These cases are left to the net:
//   - A lane closes, and a pending job in it holds a guard. Nothing follows the change of a lane.
//   - A statement takes or gives a guard although its snapshot does not show a more urgent parked job. If no process is going to run yield for that
//     job, the job waits for one run or for the net.
//   - A claim locks a pending row that a move has taken out of its lane. Meanwhile, yield skips the row.
//   - The reply to an operator's command or to a promotion is lost, or the command is rolled back after it has locked the first parked job.
//
// These parts of the protocol come from traces of the model; without each of them, a test finds an error:
//   - Yield follows admit. An admission with an older snapshot could otherwise take the guard between the two, and no process would yield it.
//   - Admit does not pass over a locked job. Two processes could otherwise exchange two jobs without end.
//   - An admission without the guard is repeated, with yield.
//   - An end inserts the guards of next steps before it frees its own. Otherwise it can deadlock with a batch of submissions.
//
// The bound is two subjects, three jobs (four for hand-offs), two commands and two faults; the scenarios in the tests list the combinations.
// Unique keys and fan-outs are not part of the model. A transaction waits for their rows after it has inserted guards. Transactions that lock
// them first, such as submissions with keys, must take no guards.
package model
