// Package demokinds contains the demo.* kinds, whose jobs do nothing useful in a predictable way, so that a test can inject a fault and
// count its consequences. They sleep, fail, panic, exit, spin, leak, chain, fan out and write. In the host's database, they touch only the
// table demo_rows.
//
// If a ledger is configured, every claim reports its events to this external observer in the following order:
//
//	start ─▶ (tick | effect)… ─▶ ctx_done? ─▶ end ─▶ (the finish commits)
//
// If the ledger responds with 409, the handler stops and its job fails permanently. This shows how a system other than the database can
// enforce a fencing token.
package demokinds
