// Package torture deliberately harms a small fleet and keeps the records from which a checker derives the consequences.
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
// Nothing is mocked: the cluster writes to disk, the pods are `trapeze serve` processes, and a kill is a real kill. Only two things are
// simulated. Proxies in front of PostgreSQL for each pod, and in front of pods for each remote worker, simulate the network. The ledger
// server simulates the outside world.
//
// The plan and the workload depend only on the seed. How real processes react does not: a seed reproduces the same faults at the same
// times, but not the same history.
package torture
