package checker

import "time"

// shutdownGraceful (I11): a pod that was sent SIGTERM, and left alone otherwise, claims nothing and starts no handler a
// second later, gives back whatever it does not finish, and exits with 0 within its grace and two seconds. With what code it
// exits is judged whatever the machine and the database are at.
func shutdownGraceful(v *view, f *Finding) {
	more := v.slack / 2 // for a loaded machine
	for _, l := range v.lives {
		if l.TermAt == nil || l.Signal != "" || len(l.Fired) > 0 || v.diedOfAJob(l) {
			continue
		}
		calm := v.trouble.calm(l.Pod, *l.TermAt, l.Ended)
		if l.Ready == nil && !calm {
			continue // it may have been told while it could not start
		}
		f.judge(l.Exit == 0, 0, "%s (process %d), which was told to end at %s, exited with %d", l.Pod, l.PID, clock(*l.TermAt), l.Exit)
		if l.Ready == nil || !calm {
			continue
		}
		most := v.run.Settings.Grace + 2*time.Second + more
		f.judge(l.Ended.Sub(*l.TermAt) <= most, 0, "%s (process %d) took %s to end, more than %s", l.Pod, l.PID, l.Ended.Sub(*l.TermAt), most)
		last := l.TermAt.Add(time.Second + more)
		for _, b := range l.boots {
			for _, c := range b.claims {
				if c.of.tampered {
					continue
				}
				f.judge(!c.event.At.After(last), c.of.id, "job %d was claimed by %s %s after that pod was told to end", c.of.id, b.name(),
					c.event.At.Sub(*l.TermAt))
				if start := c.start(); start != nil {
					f.judge(!start.T.After(last), c.of.id, "a handler of job %d started on %s %s after that pod was told to end", c.of.id, b.name(),
						start.T.Sub(*l.TermAt))
				}
				if c.end == nil || c.end.At.After(*l.TermAt) {
					f.judge(c.end != nil && !recovers(c.end), c.of.id, "job %d was left behind by %s, which ended in order", c.of.id, b.name())
				}
			}
		}
	}
}

// diedOfAJob reports whether a process may have been ended by one of the handlers that do so, and not by its signal.
func (v *view) diedOfAJob(l *life) bool {
	for _, b := range l.boots {
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
