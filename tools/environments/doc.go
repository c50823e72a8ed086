// Package environments runs one workload on the databases, roles, poolers and neighbors that other people have: the table of environments
// has one line for each.
//
//	a line ──▶ a separate database and role ──▶ migrate ──▶ two pods as processes, one is killed ──▶ every job ended as it should
//
// The tests have the build tag environments and take a few minutes; run them with make environments. Other packages cannot import this one.
package environments
