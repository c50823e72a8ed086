package access

import (
	"crypto/x509"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"
)

// ErrUnknownCertificate means that a request's client certificate is trusted, but has expired or has a name that is not in the file. The
// error text names the certificate and may be sent to the client.
var ErrUnknownCertificate = errors.New("unknown client certificate")

// maxCertificateName is the maximum length of a certificate name, in bytes.
const maxCertificateName = 500

// certifies validates a token file entry that contains a certificate name, such as
// {"certificate":"spiffe://example.org/gpu","name":"gpu","roles":["worker"]}. A name with "://" is matched against the URIs in the
// certificate's alternative names, and any other name against its common name.
func (e entry) certifies(before map[string]Principal) error {
	switch {
	case e.Token != "":
		return errors.New("want a token or a certificate, not both")
	case len(e.Certificate) > maxCertificateName || strings.TrimSpace(e.Certificate) != e.Certificate:
		return fmt.Errorf("certificate: want at most %d bytes without surrounding spaces", maxCertificateName)
	}
	if _, twice := before[e.Certificate]; twice {
		return fmt.Errorf("certificate %q is listed twice", e.Certificate)
	}
	return nil
}

// certificateOf returns the client certificate that authenticates a request, or nil. The handshake must have verified the certificate, and
// the request must have neither a token nor a session. A token identifies the sender more precisely than a certificate, which a machine
// presents to every server.
func certificateOf(r *http.Request) *x509.Certificate {
	if r.TLS == nil || len(r.TLS.VerifiedChains) == 0 || len(r.TLS.PeerCertificates) == 0 || len(r.Header.Values("Authorization")) > 0 {
		return nil
	}
	if _, err := r.Cookie(SessionCookie); err == nil {
		return nil
	}
	return r.TLS.PeerCertificates[0]
}

// principalOf returns a certificate's principal. It rechecks the expiry, because a connection may outlive its certificate.
func (t *Tokens) principalOf(leaf *x509.Certificate, now time.Time) (Principal, error) {
	names := namesOf(leaf)
	if now.After(leaf.NotAfter) {
		return Principal{}, fmt.Errorf("%w: the certificate of %q expired at %s", ErrUnknownCertificate, names, leaf.NotAfter.UTC().Format(time.RFC3339))
	}
	known := t.file.get().certificates
	for _, name := range names {
		if who, ok := known[name]; ok {
			return who, nil
		}
	}
	return Principal{}, fmt.Errorf("%w: no entry of the tokens file has the certificate %q", ErrUnknownCertificate, names)
}

// namesOf returns a certificate's names: its URIs, followed by its common name. It ignores a common name in the form of a URI.
func namesOf(leaf *x509.Certificate) (names []string) {
	for _, uri := range leaf.URIs {
		if text := uri.String(); strings.Contains(text, "://") {
			names = append(names, text)
		}
	}
	if name := leaf.Subject.CommonName; name != "" && !strings.Contains(name, "://") {
		names = append(names, name)
	}
	return names
}
