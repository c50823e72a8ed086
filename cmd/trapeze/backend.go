package main

import (
	"encoding/json"
	"errors"

	"github.com/spf13/cobra"

	"github.com/trapeze-run/trapeze/internal/store"
)

// history says whose events are meant; at most one of its fields is set.
type history struct{ job, pipeline int64 }

// completion is one part of a deferred job that is completed.
type completion struct {
	Token  string          `json:"token"`
	Part   string          `json:"part,omitempty"`
	Result json.RawMessage `json:"result,omitempty"`
	Error  string          `json:"error,omitempty"` // empty: it did not fail
}

// reach returns what a command acts on: the server of --server or TRAPEZE_SERVER, else the database.
func reach(c *cobra.Command) (*server, error) {
	config, err := loadConfig()
	if err != nil {
		return nil, err
	}
	if to, ok := serverOf(c, config); ok {
		return newServer(to)
	}
	db, err := open(c.Context())
	if err != nil {
		return nil, err
	}
	return newLocal(db), nil
}

// passing reports whether err is of something that does not answer for now.
func passing(err error) bool {
	if answer, ok := errors.AsType[*answerError](err); ok {
		return answer.passing()
	}
	return store.Transient(err)
}
