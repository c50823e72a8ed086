package access

import (
	"crypto/x509"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"
)

// ErrUnknownCertificate says that a request shows a client certificate which is believed, and whose name is in no line of the file, or
// whose time is over. Its text names the certificate, and may be told to who showed it.
var ErrUnknownCertificate = errors.New("unknown client certificate")

// maxCertificateName bounds the name of a certificate, in bytes.
const maxCertificateName = 500

// certifies reports what is wrong with a line that has the name of a certificate:
// {"certificate":"spiffe://example.org/gpu","name":"gpu","roles":["worker"]}. A name with "://" is a URI among the certificate's
// alternative names, any other one its common name.
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

// certificateOf is the client certificate that speaks for a request: one that the handshake has verified, where there is neither a token
// nor a session. A token says more exactly who asks than what a machine shows to everybody.
func certificateOf(r *http.Request) *x509.Certificate {
	if r.TLS == nil || len(r.TLS.VerifiedChains) == 0 || len(r.TLS.PeerCertificates) == 0 || len(r.Header.Values("Authorization")) > 0 {
		return nil
	}
	if _, err := r.Cookie(SessionCookie); err == nil {
		return nil
	}
	return r.TLS.PeerCertificates[0]
}

// certified finds whose a certificate is. The handshake looked at its end; a connection may outlive that.
func (t *Tokens) certified(leaf *x509.Certificate, now time.Time) (Principal, error) {
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

// namesOf are what a certificate is known by: its URIs, then its common name. A common name that looks like a URI is none.
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
