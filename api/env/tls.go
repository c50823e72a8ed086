package env

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"os"
)

// TLS returns the settings of an HTTPS server, or nil without TRAPEZE_TLS_CERT. With TRAPEZE_TLS_CLIENT_CA, every client must present a
// certificate of that authority. Its error names the variable.
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
		// Read at each handshake, of which there are few: a renewed certificate needs no restart.
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
