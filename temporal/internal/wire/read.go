package wire

import (
	"encoding/json"

	"github.com/trapeze-run/trapeze/job"
)

// Read is a read request from a handler whose process has no connection to PostgreSQL.
type Read struct {
	What  string `json:"what"`            // one of the constants below
	After int    `json:"after,omitempty"` // the number of branches that have already been read
}

// The kinds of read requests.
const (
	ParentResult = "parent_result"
	OwnFailure   = "failure"
	Token        = "token"
	Branches     = "branches"
)

// Answer is the reply to a [Read].
type Answer struct {
	Value    json.RawMessage `json:"value,omitempty"`
	Branches []job.Branch    `json:"branches,omitempty"`
	More     bool            `json:"more,omitempty"`
	NotFound bool            `json:"not_found,omitempty"` // see [job.ErrNotFound]
	Error    string          `json:"error,omitempty"`
}

// Bytes returns the approximate size of a reply.
func (a *Answer) Bytes() int {
	n := len(a.Value)
	for i := range a.Branches {
		n += BranchBytes(&a.Branches[i])
	}
	return n
}

// BranchBytes returns the approximate size of a branch in a reply.
func BranchBytes(b *job.Branch) int { return len(b.JSON) + len(b.Error) + 200 }
