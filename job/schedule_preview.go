package job

import "time"

// SchedulePreview is what an expression comes to.
type SchedulePreview struct {
	Expression string      `json:"expression"`
	Zone       string      `json:"zone"`
	Words      string      `json:"words"`      // what it says, in plain language
	NextFires  []time.Time `json:"next_fires"` // none: it never fires again
}
