package env

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"os"
)

// TLS returns the TLS configuration of an HTTPS server, or nil if TRAPEZE_TLS_CERT is not set. If TRAPEZE_TLS_CLIENT_CA is set, every
// client must present a certificate signed by that CA. An error names the variable at fault.
func (c Config) TLS() (*tls.Config, error) {
	if c.vars.TLSCert == "" {
		return nil, nil
	}
	read := func() (*tls.Certificate, error) {
		pair, err := tls.LoadX509KeyPair(c.vars.TLSCert, c.vars.TLSKey)
		return &pair, err
	}
	if _, err := read(); err != nil {
		return nil, fmt.Errorf("TRAPEZE_TLS_CERT, TRAPEZE_TLS_KEY: %w", err)
	}
	config := &tls.Config{
		MinVersion: tls.VersionTLS12,
		NextProtos: []string{"h2", "http/1.1"},
		// The certificate is read at each handshake, so that renewing it needs no restart. Handshakes are rare enough for this.
		GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return read() },
	}
	if c.vars.TLSClientCA != "" {
		raw, err := os.ReadFile(c.vars.TLSClientCA)
		if err != nil {
			return nil, fmt.Errorf("TRAPEZE_TLS_CLIENT_CA: %w", err)
		}
		config.ClientCAs, config.ClientAuth = x509.NewCertPool(), tls.RequireAndVerifyClientCert
		if !config.ClientCAs.AppendCertsFromPEM(raw) {
			return nil, fmt.Errorf("TRAPEZE_TLS_CLIENT_CA: %s has no PEM certificate", c.vars.TLSClientCA)
		}
	}
	return config, nil
}
