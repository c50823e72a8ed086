package job

import (
	"encoding/json"
	"fmt"
)

// Branch is the end of one branch of a fan-out: of a child and the steps after it, or of a part that was completed from outside.
type Branch struct {
	No      int    // which child, counted from 1; 0: a part
	JobID   int64  // the last job of the branch; 0: a part
	Kind    string // of that job
	Subject string // of that job
	Part    string // the name of a part
	State   State
	Outcome OutcomeStatus
	Reason  Reason
	Error   string
	JSON    json.RawMessage // the result; nil: none
}

// Result decodes the result of the branch into v. It returns [ErrNotFound] when there is none.
func (b *Branch) Result(v any) error {
	if b.JSON == nil {
		return fmt.Errorf("child %d ended without a result: %w", b.No, ErrNotFound)
	}
	return json.Unmarshal(b.JSON, v)
}
