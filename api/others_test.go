package api_test

import (
	"net/http"
	"strings"
	"testing"

	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/api"
)

// strangers is a host with root, who may do everything, and two submitters who see nothing of each other.
func strangers(t *testing.T) *host {
	return newHost(t, api.Options{Authenticate: byName(map[string][]string{"root": {"platform_admin"}, "ana": {"submitter"}, "bob": {"submitter"}})})
}

func TestWhatIsSomebodyElsesIsAnsweredLikeWhatIsNot(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	h := strangers(t)
	bobs := h.send("POST", "/jobs", `{"kind":"echo","delay":3600}`, "X-Who", "bob").body["id"].(string)
	const none = "987654321"
	for _, route := range api.Routes() {
		if !strings.Contains(route.Path, "jobs/:id") && !strings.Contains(route.Path, "pipelines/:id") || strings.HasPrefix(route.Path, "/admin") {
			continue
		}
		tell := func(id string) string {
			a := h.send(route.Method, strings.Replace(route.Path, ":id", id, 1), "", "X-Who", "ana")
			delete(a.body, "request_id")
			a.body["detail"] = strings.ReplaceAll(a.body["detail"].(string), id, "ID")
			return http.StatusText(a.status) + " " + a.body["code"].(string) + " " + a.body["message"].(string) + " " + a.body["detail"].(string)
		}
		if route.Needs == "jobs:approve" {
			continue // a submitter may approve nothing: 403 whatever it is
		}
		is.Equal(tell(bobs), tell(none)) // nobody learns which ids there are
	}
}
