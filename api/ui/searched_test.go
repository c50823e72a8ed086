package ui

import (
	"bytes"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/matryer/is"
)

func TestDashboardIncompleteSearch(t *testing.T) {
	is := is.New(t)
	until := time.Now().Add(-72 * time.Hour)
	set, next := &filters{Values: url.Values{"name": {"seldom"}}}, "jobs?name=seldom&cursor=c"
	for file, list := range map[string]any{
		"jobs.html": jobList{filters: set, Next: next, Until: &until}, "pipelines.html": pipelineList{filters: set, Next: next, Until: &until},
	} {
		var body bytes.Buffer
		is.NoErr(templates()[file].ExecuteTemplate(&body, "main", &page{Data: list, Now: time.Now()}))
		is.True(strings.Contains(body.String(), "The search is incomplete"))
		is.True(strings.Contains(body.String(), `cursor=c" rel="next">Search further back</a>`)) // the search continues from the cursor
		is.True(!strings.Contains(body.String(), " match."))                                     // the number of matches is not known
	}
}
