package job_test

import (
	"testing"

	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/job"
)

func TestANULIsFoundAndAnEscapedBackslashIsNone(t *testing.T) {
	is := is.New(t)
	is.True(job.HoldsNUL([]byte(`"a\u0000b"`)))
	is.True(job.HoldsNUL([]byte(`"\\\u0000"`)))            // a backslash, then a NUL
	is.True(!job.HoldsNUL([]byte(`"C:\\u0000"`)))          // a backslash, then letters
	is.True(!job.HoldsNUL([]byte(`{"text":"\\\\u0000"}`))) // two backslashes, then letters
	is.True(!job.HoldsNUL(nil))
}
