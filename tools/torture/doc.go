// Package torture injects faults into a small fleet and records everything that happens. A checker judges the run by these records.
//
//	seed ─▶ plan, workload
//	          │
//	world ────┼─▶ PostgreSQL ◀─ proxy ◀─ pod1 … podN   processes of the real binary
//	          │        │                     ▲
//	          │        │                     proxies ◀─ worker1 … workerN   remote, without a database
//	          ▼        ▼                     ▼
//	      faults    samples               ledger       the clients' calls
//	          └────────┴──────── a folder ───┴────────────┘ ─▶ quiet tail ─▶ exports ─▶ checker
//
// Nothing is mocked: the cluster writes to disk, the pods are `trapeze serve` processes, and a kill is a real kill. Only two things are
// simulated. Proxies simulate the network between each pod and PostgreSQL and between each remote worker and its pods. The ledger server
// simulates the outside world.
//
// The plan and the workload depend only on the seed, but the reactions of real processes do not. A seed therefore reproduces the same
// faults at the same times, but the history may differ in detail.
package torture
