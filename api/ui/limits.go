package ui

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"strings"

	"github.com/trapeze-run/trapeze/internal/access"
	"github.com/trapeze-run/trapeze/internal/store/admin"
	storeview "github.com/trapeze-run/trapeze/internal/store/view"
	"github.com/trapeze-run/trapeze/internal/text"
	"github.com/trapeze-run/trapeze/job"
)

// limitsPage holds the data for the page with the limits of keys.
type limitsPage struct {
	Use    job.KeysInUse
	Limits []keyLimit
	Next   string // the URL of the next page of limits, or empty on the last page
	Later  bool   // this is not the first page of limits
	Most   int    // the largest number of waiting jobs that is counted
	formChoices
}

// keyLimit is a limit and the request that removes it.
type keyLimit struct {
	job.KeyLimit
	Remove string
}

// Bar returns how many of the places that bind a key are in use, and their number.
func (limitsPage) Bar(k job.KeyUse) (b struct{ Used, Of int }) {
	if b.Used, b.Of = k.LaneUsed, k.LaneLimit; k.Binds == job.BindsKind {
		b.Used, b.Of = k.KindUsed, *k.KindLimit
	}
	return b
}

// showLimits shows the keys that wait most, and one page of limits.
func showLimits(rd *reader, p *page, r *http.Request) error {
	show := limitsPage{Most: job.MaxKeyWaiting}
	cursor, err := text.DecodeCursor("limits", r.URL.Query().Get("cursor"))
	if err != nil {
		return invalid(fmt.Errorf("cursor: %w", err))
	}
	after := job.LimitOf{}
	if parts := strings.SplitN(cursor, "\n", 3); len(parts) == 3 {
		after, show.Later = job.LimitOf{Scope: parts[0], Name: parts[1], Key: parts[2]}, true
	}
	if show.Use, err = rd.keys.get(r.Context(), fresh(r), func(ctx context.Context) (job.KeysInUse, error) {
		return storeview.KeysInUse(ctx, rd.o.Store, "", "", "")
	}); err != nil {
		return err
	}
	found, err := admin.Limits(r.Context(), rd.o.Store, job.KeyLimitFilter{}, after, perPage)
	if err != nil {
		return err
	}
	for _, l := range found {
		of := url.Values{"scope": {l.Scope}, "name": {l.Name}, "key": {l.Key}}
		show.Limits = append(show.Limits, keyLimit{l, "DELETE admin/workers/limits?" + of.Encode()})
	}
	if len(found) == perPage {
		last := found[perPage-1]
		show.Next = "limits?cursor=" + text.EncodeCursor("limits", last.Scope+"\n"+last.Name+"\n"+last.Key)
	}
	if p.Can(string(access.WorkersManage)) {
		show.formChoices, err = rd.formChoices(r)
	}
	p.Title, p.Data, p.Still = "Limits", show, show.Later
	return err
}
