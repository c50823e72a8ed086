package faults

import (
	"cmp"
	"slices"

	"github.com/trapeze-run/trapeze/job"
)

// checkSubjects checks that no two runs of jobs with the same kind and subject overlapped. It processes the events in the order in which
// they were written. A run's end is written before the commit that frees its subject, and the next run's start is written after that
// commit, except for a step that takes over its parent's slot: these steps start in the transaction that ends the parent.
func (w *world) checkSubjects(h history) {
	w.t.Helper()
	type key struct{ kind, subject string }
	var all []event
	ends := map[int64]string{} // by job, the transaction that ended it
	for _, events := range h.events {
		for _, e := range events {
			if (e.From == job.Running) != (e.To == job.Running) {
				all = append(all, e)
			}
			if e.To.Terminal() {
				ends[e.Job] = e.XID
			}
		}
	}
	slices.SortFunc(all, func(a, b event) int { return cmp.Compare(a.Written, b.Written) })
	runs := map[key]event{}
	for _, e := range all {
		r := h.jobs[e.Job]
		if r.Subject == "" {
			continue
		}
		k := key{r.Kind, r.Subject}
		holder, held := runs[k]
		if e.To == job.Running {
			if held && ends[holder.Job] != e.XID {
				w.t.Errorf("%s/%s: job %d was claimed (event %d) while job %d ran (since its event %d)", k.kind, k.subject,
					e.Job, e.No, holder.Job, holder.No)
			}
			runs[k] = e
		} else if held && holder.Job == e.Job {
			delete(runs, k)
		}
	}
}
