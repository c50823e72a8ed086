package engine

import (
	"cmp"
	"encoding/json"

	"github.com/trapeze-run/trapeze/job"
)

// Limits returns the limits of each handled kind, as JSON. A pod stores them with its row, so that operators see them.
func (i *Identity) Limits() json.RawMessage {
	limits := map[string]job.KindLimits{}
	for _, name := range i.HandledKinds {
		k := i.Kinds[name]
		one := job.KindLimits{Timeout: job.Seconds(k.Timeout), MaxAttempts: cmp.Or(k.MaxAttempts, i.Opts.MaxAttempts), MaxCrashes: cmp.Or(k.MaxCrashes, i.Opts.MaxCrashes)}
		if k.StaleAfter != nil {
			after := job.Seconds(*k.StaleAfter)
			one.StaleAfter = &after
		}
		limits[name] = one
	}
	raw, _ := json.Marshal(limits) // numbers and strings can always be encoded
	return raw
}
