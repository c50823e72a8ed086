package ui

import (
	"bytes"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/matryer/is"
)

func TestAPageThatFoundNothingYetSaysHowFarTheSearchWent(t *testing.T) {
	is := is.New(t)
	until := time.Now().Add(-72 * time.Hour)
	list := jobList{filters: &filters{Values: url.Values{"kind": {"seldom"}}}, Next: "jobs?kind=seldom&cursor=c", Until: &until}
	var body bytes.Buffer
	is.NoErr(templates["jobs.html"].ExecuteTemplate(&body, "main", &page{Data: list, Now: time.Now()}))
	is.True(strings.Contains(body.String(), "The search went back to jobs created"))
	is.True(strings.Contains(body.String(), `cursor=c" rel="next">Look further back</a>`)) // and goes on from there
	is.True(!strings.Contains(body.String(), "No job matches"))                            // which is not known
}
