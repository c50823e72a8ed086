package job_test

import (
	"errors"
	"testing"

	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/job"
)

func TestBranchWithoutResult(t *testing.T) {
	is := is.New(t)
	for want, b := range map[string]job.Branch{
		"child 3 ended without a result: not found":      {No: 3},
		`part "audio" ended without a result: not found`: {Part: "audio"},
	} {
		err := b.Result(new(int))
		is.True(errors.Is(err, job.ErrNotFound))
		is.Equal(err.Error(), want)
	}
}
