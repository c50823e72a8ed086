package ui

import (
	"net/url"
	"testing"

	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/internal/access"
)

func TestBulkFiltersOffered(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	role := func(name string) visitor {
		r, _ := access.BuiltInRole(name)
		return visitor{access.Principal{Name: "ana"}.With(access.RightsOf(r))}
	}
	offers := func(who visitor, query string) (list []string) {
		asked, err := url.ParseQuery(query)
		is.NoErr(err)
		for _, m := range who.manyOf(&filters{asked, "jobs"}) {
			list = append(list, m.Label+" "+m.Filter)
		}
		return list
	}
	admin := role(access.PlatformAdmin)
	is.Equal(offers(admin, "kind=k&since=24h"), []string{`Cancel {"kind":"k","since":"24h"}`, `Retry {"kind":"k","since":"24h"}`})
	is.Equal(offers(admin, "state=open&lane=l"), []string{`Cancel {"lane":"l"}`})
	is.Equal(offers(admin, "state=pending,failed&since=all"), []string{`Cancel {"state":["pending"]}`, `Retry {"state":["failed"]}`})
	is.Equal(offers(admin, "error_class=panic&since=24h"), []string{`Retry {"error_class":"panic","since":"24h","state":["failed"]}`})
	is.Equal(offers(admin, "reason=expired"), []string{`Retry {"reason":"expired","state":["cancelled","failed"]}`})
	is.Equal(offers(admin, "reason=retry"), []string{`Cancel {"reason":"retry","state":["pending"]}`})
	is.Equal(offers(admin, "state=open&error_code=x"), []string{`Cancel {"error_code":"x"}`}) // open jobs cannot be retried
	is.Equal(offers(admin, "state=succeeded"), nil)                                           // succeeded jobs cannot be changed
	is.Equal(offers(admin, ""), nil)                                                          // no filter
	is.Equal(offers(admin, "since=all"), nil)                                                 // "all" is not a filter
	is.Equal(offers(admin, "state=open&since=all"), nil)                                      // not even in combination with state=open
	is.Equal(offers(role("viewer"), "kind=k"), nil)                                           // a viewer gets no buttons
	is.Equal(offers(role("submitter"), "kind=k"), nil)                                        // permission for only the caller's own jobs is not enough
	is.Equal(len(offers(role("operator"), "pipeline=7")), 2)
}
