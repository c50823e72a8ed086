// Package admin contains the statements that make changes on behalf of operators. They change lanes, the queue state, pods, roles,
// schedules and retention, and take due schedules ([TakeDue]). They also cancel, retry, move, approve and reprioritize jobs. Each change by an operator
// is one transaction that includes its audit entry. Bulk changes use one transaction per page of jobs. Automatic changes, such as the
// expiry of an approval, write no audit entry. The package determines the order in which rows are locked. It also contains the audit log
// and the queries that these commands and their checks need.
//
// Package runner and the API call this package on behalf of operators. Packages scheduler, pod, maintenance and engine call it for automatic
// changes. Each function takes the [store.Store] that it uses.
package admin
