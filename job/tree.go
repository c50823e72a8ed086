package job

// Tree is a pipeline with the jobs of its spine and the children of their fan-outs.
type Tree struct {
	Pipeline
	Jobs []TreeJob `json:"jobs"`
}

// TreeJob is a job of a tree.
type TreeJob struct {
	Job
	FanOut *TreeFanOut `json:"fan_out,omitempty"` // nil: it has not fanned out, or the fan-out exceeds the limits of the tree
}

// TreeFanOut is the fan-out of a job. Each child is shown, and counted, by the last job of its chain.
type TreeFanOut struct {
	Branches int           `json:"branches"`
	States   map[State]int `json:"states"` // children by state
	Shown    []TreeJob     `json:"shown"`  // children that run or did not succeed
}
