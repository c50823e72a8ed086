// Package view holds the statements by which people and the API read: jobs, pipelines, events, the fleet, and what doctor checks. It changes
// nothing. Lists are read by the index that leads to their rows soonest, in pages of bounded size and time. A function takes the [store.Store] that it
// runs on.
package view
