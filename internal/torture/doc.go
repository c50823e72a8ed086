// Package torture breaks a small fleet on purpose and keeps the records from which a checker tells what came of it.
//
//	seed ─▶ plan, workload
//	          │
//	world ────┼─▶ PostgreSQL ◀─ proxy ◀─ pod1 … podN   processes of the real binary
//	          │        │                     ▲
//	          │        │                     proxies ◀─ worker1 … workerN   remote, without a database
//	          ▼        ▼                     ▼
//	      faults    samples               ledger       calls of the clients
//	          └────────┴──────── a folder ───┴────────────┘ ─▶ quiet tail ─▶ exports ─▶ checker
//
// Nothing here is a double: the cluster writes to disk, the pods are `trapeze serve`, a kill is a kill. What is played is the
// network, by a proxy in front of PostgreSQL for each pod and in front of pods for each remote
// worker, and the world outside, by the ledger server.
//
// The plan and the workload follow from the seed alone. What real processes make of them does not: a seed brings back the
// same faults at the same moments, not the same history.
package torture
