package e2e

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/trapeze-run/trapeze/internal/pgtest"
)

// The files attack_…_test.go attack a real process over HTTP. docs/testing.md lists the attacks, and `make attack` runs them.

// target is a pod under attack by the users of [tokensOfTeam].
type target struct {
	*pod
	client   *http.Client
	document map[string]any // the OpenAPI document
}

// attacked starts a pod with a token for each user.
func attacked(t *testing.T, env ...string) *target {
	t.Helper()
	return attackedWith(t, append(env, "TRAPEZE_TOKENS_FILE="+tokensOfTeam(t))...)
}

func attackedWith(t *testing.T, env ...string) *target {
	t.Helper()
	return &target{pod: serve(t, pgtest.URL(t), env), client: &http.Client{Timeout: 20 * time.Second, CheckRedirect: func(*http.Request, []*http.Request) error {
		return http.ErrUseLastResponse
	}}}
}

// reply is a response to an attack.
type reply struct {
	status int
	header http.Header
	text   string
	body   map[string]any
}

// code returns the error code in a response.
func (r reply) code() string {
	code, _ := r.body["code"].(string)
	return code
}

// ask sends a request as the named user, or without credentials if who is empty. header alternates names and values.
func (a *target) ask(who, method, path, body string, header ...string) reply {
	a.t.Helper()
	if who != "" {
		header = append([]string{"Authorization", "Bearer " + who + "-0123456789-0123456789"}, header...)
	}
	return a.send(method, path, body, header...)
}

func (a *target) send(method, path, body string, header ...string) reply {
	a.t.Helper()
	request, err := http.NewRequestWithContext(a.t.Context(), method, a.HTTP+path, strings.NewReader(body))
	if err != nil {
		a.t.Fatal(err)
	}
	if body != "" {
		request.Header.Set("Content-Type", "application/json")
	}
	for i := 0; i < len(header); i += 2 {
		request.Header.Set(header[i], header[i+1])
	}
	response, err := a.client.Do(request)
	if err != nil {
		a.t.Fatalf("%s %s: %v", method, path, err)
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err != nil {
		a.t.Fatalf("%s %s: %v", method, path, err)
	}
	r := reply{status: response.StatusCode, header: response.Header, text: string(text)}
	_ = json.Unmarshal(text, &r.body)
	return r
}

// submit submits a job as a user and returns its ID.
func (a *target) submit(who, body string) string {
	a.t.Helper()
	r := a.ask(who, "POST", "/jobs", body)
	if r.status != http.StatusAccepted {
		a.t.Fatalf("submit %s: %d %s", body, r.status, r.text)
	}
	return r.body["id"].(string)
}

// session signs a user in and returns the session cookie.
func (a *target) session(who string) string {
	a.t.Helper()
	r := a.send("POST", "/ui/login", url.Values{"token": {who + "-0123456789-0123456789"}}.Encode(), "Content-Type", "application/x-www-form-urlencoded")
	cookie, _, _ := strings.Cut(r.header.Get("Set-Cookie"), ";")
	if r.status != http.StatusNoContent || cookie == "" {
		a.t.Fatalf("sign in as %s: %d %s", who, r.status, r.text)
	}
	return cookie
}

// refusals returns the number of audit entries for an actor's refused requests.
func (a *target) refusals(actor string) (n int) {
	a.t.Helper()
	for _, one := range a.ask("root", "GET", "/admin/audit?limit=1000&actor="+url.QueryEscape(actor), "").body["audit"].([]any) {
		if one := one.(map[string]any); one["allowed"] == false && one["reason"] != "" {
			n++
		}
	}
	return n
}

var parameters = regexp.MustCompile(`:[a-z]+`)

// at replaces each parameter in a route's path with a value.
func at(path, value string) string { return parameters.ReplaceAllLiteralString(path, value) }

// succeeded fails the test for each attack that succeeded.
func succeeded(t *testing.T, how string, attacks map[string]bool) {
	t.Helper()
	for attack, successful := range attacks {
		if successful {
			t.Errorf("%s: %s", how, attack)
		}
	}
}

// short shortens text for messages.
func short(text string) string { return fmt.Sprintf("%.300q", text) }
