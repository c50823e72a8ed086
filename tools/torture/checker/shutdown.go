package checker

import "time"

// shutdownGraceful (I11) checks that a pod shuts down cleanly on SIGTERM if nothing else disturbs it. From one second after the signal, the
// pod must not claim a job or start a handler. It must hand back every unfinished job and exit within its grace period plus two seconds.
// The exit code must be 0 even if the machine or the database is in trouble.
func shutdownGraceful(v *view, f *Finding) {
	more := v.slack / 2 // a loaded machine may take longer
	for _, l := range v.lives {
		if l.TermAt == nil || l.Signal != "" || len(l.Fired) > 0 || v.diedOfAJob(l) {
			continue
		}
		calm := v.trouble.calm(l.Pod, *l.TermAt, l.Ended)
		if l.Ready == nil && !calm {
			continue // the pod may have been unable to start when the signal arrived
		}
		f.judge(l.Exit == 0, 0, "%s (process %d), which was told to shut down at %s, exited with code %d", l.Pod, l.PID, clock(*l.TermAt), l.Exit)
		if l.Ready == nil || !calm {
			continue
		}
		most := v.run.Settings.Grace + 2*time.Second + more
		f.judge(l.Ended.Sub(*l.TermAt) <= most, 0, "%s (process %d) took %s to shut down, more than %s", l.Pod, l.PID, l.Ended.Sub(*l.TermAt), most)
		last := l.TermAt.Add(time.Second + more)
		for _, b := range l.podIDs {
			for _, c := range b.claims {
				if c.of.tampered {
					continue
				}
				f.judge(!c.event.At.After(last), c.of.id, "job %d was claimed by %s %s after that pod was told to shut down", c.of.id, b.name(),
					c.event.At.Sub(*l.TermAt))
				if start := c.start(); start != nil {
					f.judge(!start.T.After(last), c.of.id, "a handler of job %d started on %s %s after that pod was told to shut down", c.of.id, b.name(),
						start.T.Sub(*l.TermAt))
				}
				if c.end == nil || c.end.At.After(*l.TermAt) {
					f.judge(c.end != nil && !recovers(c.end), c.of.id, "job %d was left behind by %s, which shut down normally", c.of.id, b.name())
				}
			}
		}
	}
}

// diedOfAJob reports whether a process may have been killed by one of its handlers rather than by a signal.
func (v *view) diedOfAJob(l *life) bool {
	for _, b := range l.podIDs {
		for _, c := range b.claims {
			if c.start() == nil || c.done != nil || c.of.job == nil {
				continue
			}
			switch c.of.job.Kind {
			case "demo.exit", "demo.panic", "demo.hog":
				return true
			}
		}
	}
	return false
}
