package api

import "net/http"

// secure says how browsers have to treat an answer: nothing is loaded from elsewhere, nothing runs that stands in the page itself, no
// page frames it, and no cache keeps it. Referrers stay in the same origin rather than nowhere, because with none at all a browser
// hides the origin of its own forms, too.
func secure(h http.Header) {
	h.Set("Content-Security-Policy", "default-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'; object-src 'none'")
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Referrer-Policy", "same-origin")
	h.Set("Cross-Origin-Resource-Policy", "same-origin")
	h.Set("Cache-Control", "no-store")
}
