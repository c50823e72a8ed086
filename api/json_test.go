package api_test

import (
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/labstack/echo/v4"
	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/api"
	"github.com/trapeze-run/trapeze/internal/pgtest"
	"github.com/trapeze-run/trapeze/job"
)

// awkward is JSON that is easily altered in transit: HTML characters, escapes, script line separators, and numbers that do not fit a
// float64.
const awkward = `{"page":"<b>&amp;'</b>","escaped":"\u003c\/\u00e9","line":"` + "\u2028" + `é","n":9007199254740993,"far":1e400,"m":-0.10}`

func TestArgumentBytesThroughAPI(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	h := newHost(t, api.Options{})
	id := h.submit(`{"kind":"echo","args":` + awkward + `,"chain":[{"kind":"echo","args":` + awkward + `}]}`)
	a := h.until(id, job.Succeeded)
	is.True(strings.Contains(a.text, `"args":`+awkward+`,`))
	is.True(strings.Contains(a.text, `"result":`+awkward+`,`)) // the handler received and returned the exact bytes
	is.Equal(a.header.Get("Content-Type"), "application/json; charset=UTF-8")
	is.Equal(a.header.Get("X-Content-Type-Options"), "nosniff") // keeps browsers from interpreting it as a page

	var list answer
	pgtest.Wait(t, "the step ends", func() bool {
		list = h.send("GET", "/jobs?state=succeeded&pipeline="+id, "")
		return len(list.body["jobs"].([]any)) == 2
	})
	is.Equal(strings.Count(list.text, `"args":`+awkward+`,`), 2) // including the arguments of the later step
	is.Equal(strings.Count(h.send("GET", "/admin/export/jobs", "").text, `"args":`+awkward+`,`), 2)
	refused := h.send("GET", "/jobs?kind=a&%3Cb%3E=1", "")
	is.True(strings.Contains(refused.text, `<b>`)) // errors are encoded the same way
	is.Equal(refused.header.Get("X-Content-Type-Options"), "nosniff")
}

func TestHostEchoJSONSerializer(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	h := newIdleHost(t, api.Options{})
	e := echo.New()
	api.Mount(e.Group("/trapeze"), h.Runner, api.Options{InsecureAllowAll: true})
	e.GET("/own", func(c echo.Context) error { return c.JSON(200, "<b>") })
	answer := httptest.NewRecorder()
	e.ServeHTTP(answer, httptest.NewRequest("GET", "/own", nil))
	is.Equal(answer.Body.String(), `"\u003cb\u003e"`+"\n")
}
