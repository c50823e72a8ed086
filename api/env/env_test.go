package env_test

import (
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/api/env"
	"github.com/trapeze-run/trapeze/internal/envvar"
)

// set sets the given variables and clears all others until the test ends.
func set(t *testing.T, values map[string]string) {
	t.Helper()
	for _, one := range envvar.Variables() {
		t.Setenv(one.Name, "") // restores the value after the test
		os.Unsetenv(one.Name)
	}
	for name, value := range values {
		t.Setenv(name, value)
	}
}

func TestAuthenticationVariablesByListenAddress(t *testing.T) {
	for name, c := range map[string]struct {
		env  map[string]string
		auth string // empty if the configuration is rejected
		says string
	}{
		"nothing":                  {nil, "none", ""},
		"another loopback address": {map[string]string{"TRAPEZE_HTTP_ADDR": "[::1]:0"}, "none", ""},
		"a tokens file":            {map[string]string{"TRAPEZE_TOKENS_FILE": "f"}, "token", ""},
		"token without its file":   {map[string]string{"TRAPEZE_AUTH": "token"}, "", "TRAPEZE_TOKENS_FILE"},
		"every address":            {map[string]string{"TRAPEZE_HTTP_ADDR": "0.0.0.0:80"}, "", "TRAPEZE_TOKENS_FILE"},
		"none everywhere":          {map[string]string{"TRAPEZE_HTTP_ADDR": "0.0.0.0:80", "TRAPEZE_AUTH": "none"}, "", "loopback"},
		"tokens everywhere":        {map[string]string{"TRAPEZE_HTTP_ADDR": "0.0.0.0:80", "TRAPEZE_TOKENS_FILE": "f"}, "token", ""},
		"jwt without its file":     {map[string]string{"TRAPEZE_AUTH": "jwt"}, "", "TRAPEZE_JWT_KEYS_FILE"},
		"header without proxies":   {map[string]string{"TRAPEZE_AUTH": "header"}, "", "TRAPEZE_TRUSTED_PROXIES"},
		"invalid proxies":          {map[string]string{"TRAPEZE_AUTH": "header", "TRAPEZE_TRUSTED_PROXIES": "x"}, "", "TRAPEZE_TRUSTED_PROXIES"},
		"half a certificate":       {map[string]string{"TRAPEZE_TLS_CERT": "f"}, "", "TRAPEZE_TLS_KEY"},
		"no streams":               {map[string]string{"TRAPEZE_TOKENS_FILE": "f", "TRAPEZE_STREAMS_PER_PRINCIPAL": "0"}, "", "TRAPEZE_STREAMS_PER_PRINCIPAL"},
		"a client CA alone":        {map[string]string{"TRAPEZE_TLS_CLIENT_CA": "f"}, "", "TRAPEZE_TLS_CERT"},
	} {
		t.Run(name, func(t *testing.T) {
			is := is.New(t)
			set(t, c.env)
			config, err := env.Load()
			if c.auth == "" {
				is.True(err != nil)
				is.True(strings.Contains(err.Error(), c.says)) // the error says what to set
				return
			}
			is.NoErr(err)
			is.Equal(config.Auth, c.auth)
		})
	}
}

func TestSeveralInvalidVariables(t *testing.T) {
	is := is.New(t)
	wrong := map[string]string{"TRAPEZE_AUTH": "everybody", "TRAPEZE_HTTP_ADDR": "example.org:8080", "TRAPEZE_TRUSTED_PROXIES": "x", "TRAPEZE_TLS_CERT": "f"}
	set(t, wrong)
	_, err := env.Load()
	is.True(err != nil)
	for name := range wrong {
		is.True(strings.Contains(err.Error(), name)) // the error names the variable
	}
}

func TestInvalidListenAddressVariable(t *testing.T) {
	for name, values := range map[string]map[string]string{
		"by default": {"TRAPEZE_HTTP_ADDR": "8080"},
		"none":       {"TRAPEZE_HTTP_ADDR": "8080", "TRAPEZE_AUTH": "none"},
	} {
		t.Run(name, func(t *testing.T) {
			is := is.New(t)
			set(t, values)
			_, err := env.Load()
			is.True(err != nil)
			is.Equal(err.Error(), `TRAPEZE_HTTP_ADDR="8080": want host:port, such as 127.0.0.1:8080`)
		})
	}
}

func TestListenAddressForms(t *testing.T) {
	for addr, want := range map[string]string{
		"127.0.0.1:8080": "127.0.0.1:8080", ":0": "127.0.0.1:0", "localhost:80": "127.0.0.1:80", "[::1]:80": "[::1]:80",
		"0.0.0.0:80": "0.0.0.0:80", "10.0.0.1:80": "10.0.0.1:80", "example.org:80": "", "127.0.0.1": "", "127.0.0.1:99999": "",
	} {
		t.Run(addr, func(t *testing.T) {
			is := is.New(t)
			set(t, map[string]string{"TRAPEZE_HTTP_ADDR": addr, "TRAPEZE_TOKENS_FILE": "f"})
			c, err := env.Load()
			is.Equal(c.Addr, want)
			is.Equal(err == nil, want != "")
		})
	}
}

func TestTokenFileLogin(t *testing.T) {
	is := is.New(t)
	file := filepath.Join(t.TempDir(), "tokens.json")
	set(t, map[string]string{"TRAPEZE_TOKENS_FILE": file})
	c, err := env.Load()
	is.NoErr(err) // Load does not read the file, because only serve needs it
	_, err = c.Options()
	is.True(err != nil && strings.HasPrefix(err.Error(), "TRAPEZE_TOKENS_FILE: "))

	const token = "a-token-of-twenty-characters"
	is.NoErr(os.WriteFile(file, []byte(`{"tokens":[{"token":"`+token+`","name":"ana","roles":["operator"]}]}`), 0o600))
	o, err := c.Options()
	is.NoErr(err)
	is.True(!o.InsecureAllowAll)
	_, _, err = o.Login(token)
	is.NoErr(err)
	request := httptest.NewRequest(http.MethodGet, "/jobs", nil)
	request.Header.Set("Authorization", "Bearer "+token)
	who, err := o.Authenticate(request)
	is.NoErr(err)
	is.Equal(who.Name, "ana")
}

func TestUnauthenticatedAPIOnLoopback(t *testing.T) {
	is := is.New(t)
	set(t, nil)
	c, err := env.Load()
	is.NoErr(err)
	o, err := c.Options()
	is.NoErr(err)
	is.True(o.InsecureAllowAll && o.LoopbackOnly)
	is.Equal(len(c.Warnings()), 1)
}

func TestProxyHeaderChallenge(t *testing.T) {
	is := is.New(t)
	set(t, map[string]string{"TRAPEZE_AUTH": "header", "TRAPEZE_TRUSTED_PROXIES": "10.1.0.0/16"})
	c, err := env.Load()
	is.NoErr(err)
	o, err := c.Options()
	is.NoErr(err)
	is.Equal(o.Challenge, `X-Forwarded-User realm="trapeze"`)
}

func TestServerCertificateFiles(t *testing.T) {
	is := is.New(t)
	set(t, map[string]string{"TRAPEZE_TOKENS_FILE": "f"})
	c, err := env.Load()
	is.NoErr(err)
	settings, err := c.TLS()
	is.NoErr(err)
	is.True(settings == nil) // plain HTTP
	set(t, map[string]string{"TRAPEZE_TOKENS_FILE": "f", "TRAPEZE_TLS_CERT": "nowhere.pem", "TRAPEZE_TLS_KEY": "nowhere.key"})
	c, err = env.Load()
	is.NoErr(err)
	_, err = c.TLS()
	is.True(err != nil && strings.HasPrefix(err.Error(), "TRAPEZE_TLS_CERT"))
}

func TestWorldReadableSecretFiles(t *testing.T) {
	is := is.New(t)
	dir := t.TempDir()
	tokens, key := filepath.Join(dir, "tokens.json"), filepath.Join(dir, "key.pem")
	set(t, map[string]string{"TRAPEZE_TOKENS_FILE": tokens, "TRAPEZE_TLS_CERT": filepath.Join(dir, "cert.pem"), "TRAPEZE_TLS_KEY": key})
	c, err := env.Load()
	is.NoErr(err)
	for _, file := range []string{tokens, key} {
		is.NoErr(os.WriteFile(file, nil, 0o600))
	}
	is.Equal(len(c.Warnings()), 0)
	is.NoErr(os.Chmod(key, 0o640)) // files that the group can read are accepted
	is.Equal(len(c.Warnings()), 0)
	for variable, file := range map[string]string{"TRAPEZE_TOKENS_FILE": tokens, "TRAPEZE_TLS_KEY": key} {
		is.NoErr(os.Chmod(file, 0o644))
		warnings := c.Warnings()
		is.Equal(len(warnings), 1)
		is.True(strings.Contains(warnings[0], variable) && strings.Contains(warnings[0], file) && strings.Contains(warnings[0], "chmod o-r"))
		is.NoErr(os.Chmod(file, 0o600))
	}
}

func TestStreamsPerPrincipalVariable(t *testing.T) {
	is := is.New(t)
	file := filepath.Join(t.TempDir(), "tokens.json")
	is.NoErr(os.WriteFile(file, []byte(`{"tokens":[]}`), 0o600))
	for want, variables := range map[int]map[string]string{
		1000: {"TRAPEZE_TOKENS_FILE": file}, 7: {"TRAPEZE_TOKENS_FILE": file, "TRAPEZE_STREAMS_PER_PRINCIPAL": "7"}, 0: {},
	} {
		set(t, variables)
		c, err := env.Load()
		is.NoErr(err)
		o, err := c.Options()
		is.NoErr(err)
		is.Equal(o.Streams.MostEach, want)
	}
}
