package ui

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/trapeze-run/trapeze/internal/access"
	"github.com/trapeze-run/trapeze/internal/doctor"
	"github.com/trapeze-run/trapeze/internal/store/admin"
	"github.com/trapeze-run/trapeze/internal/text"
	"github.com/trapeze-run/trapeze/job"
)

// settingsPage holds the data for the page with retention, limits and exports.
type settingsPage struct {
	Kinds     []job.Retention // retention settings for individual kinds
	Defaults  []Setting
	Limits    []Setting
	KindNames []string
}

// Keeps describes how long jobs are kept.
func (settingsPage) Keeps(r job.Retention) string {
	return Lasting(r.Keep.Duration(), "forever")
}

// Lasting formats a duration. It returns the text zero if the duration is 0.
func Lasting(d time.Duration, zero string) string {
	if d == 0 {
		return zero
	}
	return length(d)
}

// showSettings shows the page with retention, limits and exports.
func showSettings(rd *reader, p *page, r *http.Request) error {
	show := settingsPage{Defaults: rd.o.Retention, Limits: rd.o.Limits}
	var err error
	if show.Kinds, err = admin.Retentions(r.Context(), rd.o.Store); err != nil {
		return err
	}
	if p.Can(string(access.WorkersManage)) {
		choices, err := rd.formChoices(r)
		if err != nil {
			return err
		}
		show.KindNames = choices.Kinds
	}
	p.Title, p.Data = "Settings", show
	return nil
}

// doctorPage holds the data for the page with doctor's findings.
type doctorPage struct {
	Findings []doctor.Finding
	Problems int // the number of findings whose status is not ok
}

// examineFor is the timeout of doctor's checks. It is long, because the checks matter most when the database is slow.
const examineFor = 25 * time.Second

// showDoctor shows doctor's findings. The page does not refresh itself, because the checks are more expensive than other pages.
func showDoctor(rd *reader, p *page, r *http.Request) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(r.Context()), examineFor)
	defer cancel()
	found, err := rd.findings.get(ctx, false, rd.o.Examine)
	show := doctorPage{Findings: found}
	for _, finding := range found {
		if finding.Status != doctor.Healthy {
			show.Problems++
		}
	}
	p.Title, p.Data, p.Still = "Doctor", show, true
	return err
}

// rolesPage holds the data for the page with roles and grants.
type rolesPage struct {
	BuiltIn     []access.Role
	Custom      []admin.Role
	Grants      []grant
	Next        string // the URL of the next page of grants, or empty on the last page
	Later       bool   // this is not the first page of grants
	Permissions []access.Permission
}

// grant is a grant and the request that revokes it.
type grant struct {
	admin.RoleGrant
	Revoke string
}

// showRoles shows the roles and one page of grants.
func showRoles(rd *reader, p *page, r *http.Request) error {
	show := rolesPage{BuiltIn: access.BuiltIn, Permissions: access.Permissions}
	after, err := text.DecodeCursor("grants", r.URL.Query().Get("cursor"))
	if err != nil {
		return invalid(fmt.Errorf("cursor: %w", err))
	}
	if show.Custom, err = admin.Roles(r.Context(), rd.o.Store); err != nil {
		return err
	}
	filter := admin.RoleGrantFilter{Limit: perPage}
	filter.After.Principal, filter.After.Role, show.Later = strings.Cut(after, "\n")
	found, err := admin.RoleGrants(r.Context(), rd.o.Store, filter)
	for _, g := range found {
		asked := url.Values{"principal": {g.Principal}, "role": {g.Role}}
		show.Grants = append(show.Grants, grant{g, "DELETE admin/roles/grants?" + asked.Encode()})
	}
	if len(found) == perPage {
		last := found[perPage-1]
		show.Next = "settings/roles?cursor=" + text.EncodeCursor("grants", last.Principal+"\n"+last.Role)
	}
	p.Title, p.Data, p.Still = "Roles", show, show.Later
	return err
}
