package job

import "time"

// Stats counts the jobs that ended in a period. Each pod counts the jobs that it ends and stores its counts once a minute. A pod that
// crashes loses up to a minute of its counts. For exact numbers, count the jobs themselves.
type Stats struct {
	Window Seconds   `json:"window_s"` // the length of the period, which ends at At
	Every  Seconds   `json:"every_s"`  // the length of an interval
	Since  time.Time `json:"since"`    // when the first interval began
	At     time.Time `json:"at"`       // when the statistics were read
	// ReadSince is set if there were too many rows to read. Rows before this time are not included.
	ReadSince *time.Time `json:"read_since"`
	Total     StatsOf    `json:"total"`
	Of        []StatsOf  `json:"of"` // by lane or kind, in descending order of finished jobs
}

// StatsOf holds statistics for a lane, a kind, or all jobs. A quantile is nil if no handler returned.
type StatsOf struct {
	Name      string          `json:"name"`     // name of the lane or kind; empty in the total
	Finished  int64           `json:"finished"` // all jobs that ended
	Succeeded int64           `json:"succeeded"`
	Failed    int64           `json:"failed"`
	Cancelled int64           `json:"cancelled"`
	WaitP50   *Seconds        `json:"wait_p50_s"` // time from due to claimed, for the last attempt
	WaitP95   *Seconds        `json:"wait_p95_s"`
	RunP50    *Seconds        `json:"run_p50_s"` // how long the handler ran in the last attempt
	RunP95    *Seconds        `json:"run_p95_s"`
	Intervals []StatsInterval `json:"intervals"` // oldest first; the last one is still in progress
}

// StatsInterval holds the statistics for one interval.
type StatsInterval struct {
	At       time.Time `json:"at"` // when the interval began
	Finished int64     `json:"finished"`
	Failed   int64     `json:"failed"`
	WaitP95  *Seconds  `json:"wait_p95_s"` // only in the total
	RunP95   *Seconds  `json:"run_p95_s"`  // only in the total
}
