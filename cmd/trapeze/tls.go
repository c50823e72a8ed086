package main

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"os"
)

// tlsConfig is nil without a certificate. With a client CA, whoever connects shows a certificate of it.
func (c *config) tlsConfig() (*tls.Config, error) {
	if c.TLSCert == "" {
		return nil, nil
	}
	read := func() (*tls.Certificate, error) {
		pair, err := tls.LoadX509KeyPair(c.TLSCert, c.TLSKey)
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
	if c.TLSClientCA != "" {
		raw, err := os.ReadFile(c.TLSClientCA)
		if err != nil {
			return nil, fmt.Errorf("TRAPEZE_TLS_CLIENT_CA: %w", err)
		}
		config.ClientCAs, config.ClientAuth = x509.NewCertPool(), tls.RequireAndVerifyClientCert
		if !config.ClientCAs.AppendCertsFromPEM(raw) {
			return nil, fmt.Errorf("TRAPEZE_TLS_CLIENT_CA: %s holds no certificate in PEM", c.TLSClientCA)
		}
	}
	return config, nil
}
