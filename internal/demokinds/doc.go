// Package demokinds holds the demo.* kinds: jobs that do nothing useful in a known way, so that a test can place a fault and
// count its consequences. They sleep, fail, panic, exit, spin, leak, chain, fan out and write. Of the host's data they touch
// only the table demo_rows.
//
// With a ledger, every claim reports its events to an external observer, in this order:
//
//	start ─▶ (tick | effect)… ─▶ ctx_done? ─▶ end ─▶ (the finish commits)
//
// The observer may answer 409: the handler then stops and its job fails for good. This is how a system other than the database
// honours a fencing token.
package demokinds
