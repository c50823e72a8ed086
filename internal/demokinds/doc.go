// Package demokinds contains the demo.* kinds: jobs that do nothing useful in a predictable way, so that a test can inject a fault and
// count its consequences. They sleep, fail, panic, exit, spin, leak, chain, fan out and write. In the host's database, they only touch the
// demo_rows table.
//
// If a ledger is configured, every claim reports its events to this external observer, in this order:
//
//	start ─▶ (tick | effect)… ─▶ ctx_done? ─▶ end ─▶ (the finish commits)
//
// The ledger can respond with 409. The handler then stops and its job fails permanently. This shows how a system other than the database
// can enforce a fencing token.
package demokinds
