package api_test

import (
	"net/http"
	"strings"
	"testing"

	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/api"
	"github.com/trapeze-run/trapeze/internal/access"
)

func TestDashboardLimits(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	p := newPod(t, api.Options{Authenticate: nameAndRole})
	read := func(role string) (string, []string) {
		response, page := p.get(p.url+"limits", "X-Name", "ana", "X-Role", role, "X-Fresh", "1")
		is.Equal(response.StatusCode, http.StatusOK)
		mustBeHarmless(t, "limits", page)
		return visibleText(page), offered(page)
	}
	text, offers := read("viewer")
	is.True(strings.Contains(text, "No job waits for other jobs of its key."))
	is.Equal(offers, nil)
	p.exec(`insert into trapeze.limits (scope, name, key, slots, weight) values ('lane', 'default', '*', 1, null), ('lane', 'nowhere', $1, 3, null)`, hostile[0])
	p.exec(`insert into trapeze.parked (id, why, run_after, event_no, priority, lane, kind, subject, key)
		select i, 'key', now() + interval '1 hour', 1, 0, 'nowhere', 'k', '', $1 from generate_series(9000001, 9000003) i`, hostile[0])
	text, offers = read(access.PlatformAdmin)
	is.True(strings.Contains(text, hostile[0]) && strings.Contains(text, "0 of 3")) // a lane that does not exist starts nothing
	is.Equal(len(offers), 3)                                                        // one to set a limit, and one to remove each
	is.True(strings.Contains(strings.Join(offers, "\n"), "DELETE admin/workers/limits?key=%2A&name=default&scope=lane"))
	p.exec(`delete from trapeze.parked`)
}
