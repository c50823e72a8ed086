package checker

import (
	"time"

	"github.com/trapeze-run/trapeze/internal/torture/history"
)

// What a pod of the demo may use at most, beyond what its handlers hold, and by how much more than at its beginning it may
// use in the end. Each slot costs a handler, its report to the ledger and its share of the pools.
const (
	mostGoroutines  = 400
	mostFiles       = 300
	mostConnections = 24
	mostRSS         = 768 << 20 // bytes; the race detector needs several times as much
	moreGoroutines  = 60        // connections of clients that are kept open, and the ledger's
	moreFiles       = 40
	moreConnections = 10 // pools grow under load
)

// resourcesBounded (I24): no sample saw a pod use more than the caps, and at the end of the quiet tail it uses hardly more
// than in its first sample. Goroutines that demo.leak left, memory that demo.hog holds and handlers that are stuck count
// for themselves; so do the sockets of clients that gave up, which a pod closes once it gets a processor again.
func resourcesBounded(v *view, f *Finding) {
	for _, l := range v.lives {
		if l.Ready == nil {
			continue
		}
		var first, last *history.PodNumbers
		var lastAt time.Time
		leaked, hogged := v.heldBy(l)
		rss := int64(mostRSS)
		if v.run.Settings.Race || l.Race {
			rss *= 4
		}
		for i := range v.run.Samples {
			s := &v.run.Samples[i]
			if s.T.Before(*l.Ready) || s.T.Add(time.Second).After(l.Ended) || l.TermAt != nil && s.T.Add(time.Second).After(*l.TermAt) {
				continue
			}
			for k := range s.Pods {
				n := &s.Pods[k]
				if n.Pod != l.Pod {
					continue
				}
				at := clock(s.T)
				f.judge(n.Goroutines <= mostGoroutines+leaked, 0, "%s had %d goroutines at %s, more than %d", l.Pod, n.Goroutines, at, mostGoroutines+leaked)
				f.judge(n.Files <= mostFiles || v.trouble.starved(l.Pod, s.T), 0, "%s had %d files open at %s, more than %d", l.Pod, n.Files, at, mostFiles)
				f.judge(n.RSS <= rss+hogged, 0, "%s held %d MiB at %s, more than %d", l.Pod, n.RSS>>20, at, (rss+hogged)>>20)
				f.judge(n.Connections <= mostConnections, 0, "%s had %d connections to the database at %s, more than %d", l.Pod, n.Connections, at, mostConnections)
				if n.Goroutines >= 0 && n.Files >= 0 && n.Connections >= 0 {
					if first == nil {
						first = n
					}
					last, lastAt = n, s.T
				}
			}
		}
		// What is still there 15 s after the last fault may be the connection that died without a word.
		if first == nil || lastAt.Before(v.run.Settings.QuietFrom) || !v.trouble.still(l.Pod, lastAt.Add(-20*time.Second), lastAt) {
			continue
		}
		stuck := max(last.Stuck, 0) * 4
		f.judge(last.Goroutines <= first.Goroutines+moreGoroutines+leaked+stuck, 0, "%s had %d goroutines at the beginning and %d in the end", l.Pod,
			first.Goroutines, last.Goroutines)
		f.judge(last.Files <= first.Files+moreFiles, 0, "%s had %d files open at the beginning and %d in the end", l.Pod, first.Files, last.Files)
		f.judge(last.Connections <= first.Connections+moreConnections, 0, "%s had %d connections at the beginning and %d in the end", l.Pod,
			first.Connections, last.Connections)
	}
}

// heldBy sums up what the handlers of a process were asked to leave behind and to hold: goroutines, and bytes.
func (v *view) heldBy(l *life) (goroutines int, bytes int64) {
	for _, b := range l.boots {
		for _, c := range b.claims {
			if c.of.job == nil {
				continue
			}
			switch c.of.job.Kind {
			case "demo.leak":
				goroutines += max(demoArgsOf(c.of.job).N, 1)
			case "demo.hog":
				bytes += demoArgsOf(c.of.job).MB << 20
			}
		}
	}
	return goroutines, bytes
}
