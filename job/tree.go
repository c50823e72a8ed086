package job

// Tree is a pipeline with its successive jobs (its spine) and the children of their fan-outs.
type Tree struct {
	Pipeline
	Jobs []TreeJob `json:"jobs"`
}

// TreeJob is a job of a tree.
type TreeJob struct {
	Job
	FanOut *TreeFanOut `json:"fan_out,omitempty"` // nil if the job has not fanned out, or if the tree is too large to include the fan-out
}

// TreeFanOut is the fan-out of a job. Each child is represented by the last job of its chain.
type TreeFanOut struct {
	Branches int           `json:"branches"`
	States   map[State]int `json:"states"` // number of children by state
	Shown    []TreeJob     `json:"shown"`  // children that are running or did not succeed
}
