package e2e

import (
	"os"
	"path/filepath"
	"testing"
)

// tokensOfTeam writes a tokens file for root (an administrator), ops (an operator), vic (a viewer), uma and eve (submitters), wil (a remote
// worker) and mia, who has no role.
func tokensOfTeam(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "tokens.json")
	err := os.WriteFile(path, []byte(`{"tokens":[
		{"token":"root-0123456789-0123456789","name":"root","roles":["platform_admin"]},
		{"token":"ops-0123456789-0123456789","name":"ops","roles":["operator"]},
		{"token":"vic-0123456789-0123456789","name":"vic","roles":["viewer"]},
		{"token":"uma-0123456789-0123456789","name":"uma","roles":["submitter"]},
		{"token":"eve-0123456789-0123456789","name":"eve","roles":["submitter"]},
		{"token":"wil-0123456789-0123456789","name":"wil","roles":["worker"]},
		{"token":"mia-0123456789-0123456789","name":"mia","roles":[]}]}`), 0o600)
	if err != nil {
		t.Fatal(err)
	}
	return path
}
