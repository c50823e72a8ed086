package deploy

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/matryer/is"
)

const unit = "systemd/trapeze.service"

// settings returns the unit's settings by section and name, such as Service.Type.
func settings(t *testing.T) map[string][]string {
	t.Helper()
	found, section := map[string][]string{}, ""
	for line := range strings.Lines(read(t, unit)) {
		line = strings.TrimSpace(line)
		name, value, ok := strings.Cut(line, "=")
		switch {
		case line == "" || strings.HasPrefix(line, "#"):
		case strings.HasPrefix(line, "["):
			section = strings.Trim(line, "[]")
		case ok:
			found[section+"."+name] = append(found[section+"."+name], value)
		default:
			t.Errorf("%q is no setting", line)
		}
	}
	return found
}

func TestSystemdUnitShutdownAndSecrets(t *testing.T) {
	is := is.New(t)
	s := settings(t)
	plain := map[string]string{}
	for _, e := range s["Service.Environment"] {
		name, value, _ := strings.Cut(e, "=")
		plain[name] = value
		if file, ok := strings.CutPrefix(value, "%d/"); ok { // %d is the credentials directory
			is.True(strings.Contains(strings.Join(s["Service.LoadCredential"], " "), file+":/etc/trapeze/"+file))
		}
	}
	checkEnvironment(t, plain)
	accepted(t, plain)
	is.True(seconds(t, s["Service.TimeoutStopSec"][0]) >= seconds(t, plain["TRAPEZE_SHUTDOWN_GRACE"])+margin)
	is.Equal(s["Service.KillSignal"], []string{"SIGTERM"})
	is.Equal(s["Service.Restart"], []string{"always"})
	is.Equal(s["Service.ExecStart"], []string{"/usr/local/bin/trapeze serve --no-migrate"})
	is.Equal(s["Service.ExecStartPre"], []string{"/usr/local/bin/trapeze migrate up"})
}

// mostExposure is ten times the highest acceptable exposure level. systemd-analyze rates a unit without settings 9.6 and this unit 1.2.
const mostExposure = "15"

func TestSystemdUnitHardening(t *testing.T) {
	if _, err := exec.LookPath("systemd-analyze"); err != nil {
		t.Skip("systemd-analyze is not installed: install systemd to run this test")
	}
	is := is.New(t)
	// Replace the program's path, because the program need not be installed on this machine.
	here := filepath.Join(t.TempDir(), "trapeze.service")
	is.NoErr(os.WriteFile(here, []byte(strings.ReplaceAll(read(t, unit), "/usr/local/bin/trapeze", "/bin/true")), 0o644))
	out, err := exec.Command("systemd-analyze", "verify", here).CombinedOutput()
	is.NoErr(err)
	is.Equal(string(out), "") // systemd reports no unknown settings and no warnings
	out, err = exec.Command("systemd-analyze", "security", "--offline=true", "--no-pager", "--threshold="+mostExposure, here).CombinedOutput()
	lines := strings.Split(strings.TrimSpace(string(out)), "\n")
	t.Log(lines[len(lines)-1])
	is.NoErr(err)
}
