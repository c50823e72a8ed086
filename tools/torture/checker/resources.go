package checker

import (
	"time"

	"github.com/trapeze-run/trapeze/tools/torture/history"
)

// These constants limit the resources that a demo pod may use in addition to those that its handlers hold, and how much its usage may grow
// during the run. Each slot needs a handler, a connection to the ledger and a share of the pools.
const (
	mostGoroutines  = 400
	mostFiles       = 300
	mostConnections = 24
	mostRSS         = 768 << 20 // bytes; the race detector needs several times as much
	moreGoroutines  = 60        // kept-alive connections, both from clients and to the ledger
	moreFiles       = 40
	moreConnections = 10 // pools grow under load
	// The demo.fanout handler builds its children before their number is checked, and a remote worker also encodes them. In a pod, 939,450
	// children took 400 MiB. The garbage collector returns the memory to the system only minutes later.
	bytesOfChild = 1 << 10
)

// resourcesBounded (I24) checks that no sample shows a pod above these limits, and that a pod uses little more at the end of the quiet tail
// than in its first sample. Goroutines and memory that handlers leak, hold or build are subtracted (see heldBy), and so are stuck handlers.
// A starved pod's open files are not judged, because it cannot close the sockets of clients that have given up until it gets CPU time
// again.
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
		// A connection that died silently may still exist 15 s after the last fault.
		if first == nil || lastAt.Before(v.run.Settings.QuietFrom) || !v.trouble.still(l.Pod, lastAt.Add(-20*time.Second), lastAt) {
			continue
		}
		stuck := max(last.Stuck, 0) * 4
		f.judge(last.Goroutines <= first.Goroutines+moreGoroutines+leaked+stuck, 0, "%s had %d goroutines at the beginning and %d at the end", l.Pod,
			first.Goroutines, last.Goroutines)
		f.judge(last.Files <= first.Files+moreFiles, 0, "%s had %d files open at the beginning and %d at the end", l.Pod, first.Files, last.Files)
		f.judge(last.Connections <= first.Connections+moreConnections, 0, "%s had %d connections at the beginning and %d at the end", l.Pod,
			first.Connections, last.Connections)
	}
}

// heldBy adds up the goroutines that a process's handlers were asked to leak, and the bytes that they were asked to hold or build.
func (v *view) heldBy(l *life) (goroutines int, bytes int64) {
	for _, b := range l.podIDs {
		for _, c := range b.claims {
			if c.of.job == nil {
				continue
			}
			switch c.of.job.Kind {
			case "demo.leak":
				goroutines += max(demoArgsOf(c.of.job).N, 1)
			case "demo.hog":
				bytes += demoArgsOf(c.of.job).MB << 20
			case "demo.fanout":
				bytes += int64(demoArgsOf(c.of.job).N) * bytesOfChild
			}
		}
	}
	return goroutines, bytes
}
