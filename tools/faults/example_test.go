package faults

import (
	"time"

	"github.com/trapeze-run/trapeze/handlers"
)

// example makes the worked example so slow that it can be killed halfway through its ingest.
var example = handlers.Options{BatchRows: 1000, BatchPause: 50 * time.Millisecond}
