package cli

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/matryer/is"
)

func TestPagedListLimit(t *testing.T) {
	var asked []string
	web := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked = append(asked, r.URL.RawQuery)
		if r.URL.Query().Get("cursor") == "" {
			fmt.Fprint(w, `{"rows":[1,2],"next_cursor":"c"}`)
			return
		}
		fmt.Fprint(w, `{"rows":[3],"next_cursor":""}`)
	}))
	defer web.Close()
	at := &Client{url: web.URL, http: web.Client()}
	for limit, want := range map[string][]string{
		"0":    {"limit=1000", "cursor=c&limit=1000"},
		"2":    {"limit=2"},
		"1500": {"limit=1000", "cursor=c&limit=1000"},
		"3":    {"limit=3", "cursor=c&limit=1"},
		"":     {"", "cursor=c"}, // a list without pages does not accept a limit
	} {
		t.Run("limit "+limit, func(t *testing.T) {
			is := is.New(t)
			asked = nil
			query := QueryOf("limit", limit)
			var rows []int
			for row, err := range ListAll[int](t.Context(), at, "/rows", "rows", query) {
				is.NoErr(err)
				rows = append(rows, row)
			}
			is.Equal(asked, want)
			is.Equal(rows, []int{1, 2, 3}[:min(3, 1+len(want))])
			is.Equal(query, QueryOf("limit", limit)) // List does not modify the caller's query
		})
	}
}

func TestPathValueEscaping(t *testing.T) {
	is := is.New(t)
	is.Equal(Path("/admin/workers/retention/:kind/:state", "a/kind?", "failed"), "/admin/workers/retention/a%2Fkind%3F/failed")
	is.Equal(Path("/jobs/:id/retry", int64(7)), "/jobs/7/retry")
}
