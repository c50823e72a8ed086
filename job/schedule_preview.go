package job

import "time"

// SchedulePreview describes a schedule expression and its next occurrences.
type SchedulePreview struct {
	Expression string      `json:"expression"`
	Zone       string      `json:"zone"`
	Words      string      `json:"words"`      // the expression in plain language
	NextFires  []time.Time `json:"next_fires"` // empty if it never fires again
}
