package job

import (
	"encoding/json"
	"fmt"
)

// Branch is the outcome of one branch of a fan-out. A branch is either a child with its next steps, or a part that was completed
// externally.
type Branch struct {
	No      int    // the child's number, counted from 1; 0 for a part
	JobID   int64  // the last job of the branch; 0 for a part
	Kind    string // the kind of the last job
	Subject string // the subject of the last job
	Part    string // the name of the part; empty for a child
	State   State
	Outcome OutcomeStatus
	Reason  Reason
	Error   string
	JSON    json.RawMessage // the result; nil if there is none
}

// Result decodes the branch's result into v. It returns [ErrNotFound] if the branch has no result.
func (b *Branch) Result(v any) error {
	if b.JSON == nil {
		name := fmt.Sprintf("child %d", b.No)
		if b.Part != "" {
			name = fmt.Sprintf("part %q", b.Part)
		}
		return fmt.Errorf("%s ended without a result: %w", name, ErrNotFound)
	}
	return json.Unmarshal(b.JSON, v)
}
