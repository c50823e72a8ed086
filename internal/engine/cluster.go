package engine

import "sync"

// historySeen is the history of the database that heartbeats have read: empty before the first.
type historySeen struct {
	sync.Mutex
	id string
}

// heedHistory notes the history of the database that a heartbeat has read. In another one, after a standby was promoted or a backup
// restored, the latest commits may be missing: the state of this process that rests on them is dropped, and read again. Its stores have dropped their
// reserved ids by then.
func (r *Engine) HeedHistory(history string) {
	r.history.Lock()
	before := r.history.id
	r.history.id = history
	r.history.Unlock()
	if before == "" || before == history {
		return
	}
	r.Lanes.DropGrants()
	r.Marks.Drop()
	r.Doubt.Raise()
	r.Member.HistoryChanged()
}
