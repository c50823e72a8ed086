package env

import (
	"github.com/trapeze-run/trapeze/internal/cli/exit"

	"strings"
	"testing"

	"github.com/matryer/is"
)

func TestPermissionsAreMissingOnLoopbackOnly(t *testing.T) {
	for name, c := range map[string]struct {
		env  map[string]string
		auth string // empty: refused
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
		"proxies that are none":    {map[string]string{"TRAPEZE_AUTH": "header", "TRAPEZE_TRUSTED_PROXIES": "x"}, "", "TRAPEZE_TRUSTED_PROXIES"},
		"half a certificate":       {map[string]string{"TRAPEZE_TLS_CERT": "f"}, "", "TRAPEZE_TLS_KEY"},
		"a client CA alone":        {map[string]string{"TRAPEZE_TLS_CLIENT_CA": "f"}, "", "TRAPEZE_TLS_CERT"},
	} {
		t.Run(name, func(t *testing.T) {
			is := is.New(t)
			for variable, value := range c.env {
				t.Setenv(variable, value)
			}
			config, err := Load()
			if c.auth == "" {
				is.True(err != nil)
				is.Equal(exit.Code(err), exit.CodeUsage)
				is.True(strings.Contains(err.Error(), c.says)) // what to set
				return
			}
			is.NoErr(err)
			is.Equal(config.Auth, c.auth)
		})
	}
}
