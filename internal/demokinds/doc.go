// Package demokinds holds the demo.* kinds: jobs that do nothing useful in a known way, so that a fault can be placed and
// its consequences counted. They sleep, fail, panic, exit, spin, leak, chain, fan out and write; nothing of them touches data of
// the host but the table demo_rows.
//
// With a ledger every claim tells an observer outside what happens in it, in this order:
//
//	start ─▶ (tick | effect)… ─▶ ctx_done? ─▶ end ─▶ (the finish commits)
//
// The observer may refuse with 409: the handler then stops and its job fails for good, which is how a fencing token is
// honoured by a system that is not the database.
package demokinds
