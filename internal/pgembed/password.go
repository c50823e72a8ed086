package pgembed

import (
	"bytes"
	"context"
	"crypto/hmac"
	"crypto/pbkdf2"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// passwordName is the name of the password file read by libpq and pgx. The passfile parameter in [Server.URL] points to the file.
const passwordName = "pgpass"

// accessRules is the content of pg_hba.conf. Every user of the machine can connect to a loopback port, so access is protected by the
// password, which is in a file that only the owner can read.
const accessRules = `# Written by Trapeze at every start; do not edit.
local all         all              scram-sha-256
host  all         all 127.0.0.1/32 scram-sha-256
local replication all              scram-sha-256
host  replication all 127.0.0.1/32 scram-sha-256
`

func (h *home) passwordFile() string { return filepath.Join(h.dir, passwordName) }

// secure makes the server require a password. This also secures a data directory created by an earlier version, which admitted every user
// of the machine. The server must not be running.
func (h *home) secure(ctx context.Context, binDir string, as account) error {
	if err := h.ensurePassword(ctx, binDir, as); err != nil {
		return err
	}
	rules := filepath.Join(h.pgdata(), "pg_hba.conf")
	if now, err := os.ReadFile(rules); err == nil && string(now) == accessRules { // #nosec G304 -- our own home
		return nil
	}
	return writePrivate(rules, accessRules, as)
}

// ensurePassword sets the superuser's password unless the file already contains it. The file is written last; if it is missing, the next
// start sets a new password.
func (h *home) ensurePassword(ctx context.Context, binDir string, as account) error {
	info, err := os.Stat(h.passwordFile())
	switch {
	case err == nil && info.Mode().Perm()&0o077 != 0:
		return fmt.Errorf("other accounts can read the password in %s: run chmod 0600 on it, or delete it to get a new password", h.passwordFile())
	case err == nil && info.Size() > 0:
		return nil
	case err != nil && !errors.Is(err, fs.ErrNotExist):
		return err
	}
	password := rand.Text()
	secret, err := scramSecret(password)
	if err != nil {
		return err
	}
	// Single-user mode needs no password and opens no port. The statement is sent through a pipe, because every user can read a process's
	// arguments. It must not appear in the log either.
	cmd, release := command(ctx, as, h.pgdata(), filepath.Join(binDir, "postgres"), "--single", "-D", h.pgdata(),
		"-c", "password_encryption=scram-sha-256", "-c", "log_statement=none", "-c", "log_min_error_statement=panic",
		"-c", "log_min_duration_statement=-1", "postgres")
	defer release()
	cmd.Stdin = strings.NewReader("ALTER ROLE postgres PASSWORD '" + secret + "'\n")
	// In single-user mode, PostgreSQL exits with 0 even if the statement fails.
	if out, err := cmd.CombinedOutput(); err != nil || bytes.Contains(out, []byte("ERROR:")) {
		return fmt.Errorf("set the password of the superuser: %w; it printed:\n%s", orClean(err), out)
	}
	return h.keepPassword(password)
}

// scramSecret returns the verifier that PostgreSQL stores for a password (RFC 5803). PostgreSQL's default of 4,096 iterations slows down
// attacks on passwords that people choose, but a password of 130 random bits cannot be guessed. With one iteration, a new connection takes
// no longer than without a password; 4,096 iterations take 6.5 ms.
func scramSecret(password string) (string, error) {
	const iterations = 1
	salt := make([]byte, 16)
	_, _ = rand.Read(salt) // Read never fails
	salted, err := pbkdf2.Key(sha256.New, password, salt, iterations, sha256.Size)
	if err != nil {
		return "", err
	}
	sign := func(text string) []byte {
		mac := hmac.New(sha256.New, salted)
		_, _ = mac.Write([]byte(text))
		return mac.Sum(nil)
	}
	stored := sha256.Sum256(sign("Client Key"))
	encode := base64.StdEncoding.EncodeToString
	return fmt.Sprintf("SCRAM-SHA-256$%d:%s$%s:%s", iterations, encode(salt), encode(stored[:]), encode(sign("Server Key"))), nil
}

func (h *home) keepPassword(password string) error {
	text := fmt.Sprintf("127.0.0.1:*:*:*:%s\nlocalhost:*:*:*:%[1]s\n", password)
	return writePrivate(h.passwordFile(), text, account{})
}

// writePrivate atomically replaces a file with one that is owned by the account as and that only its owner can read.
func writePrivate(name, text string, as account) error {
	f, err := os.CreateTemp(filepath.Dir(name), filepath.Base(name)+".new-") // mode 0600
	if err != nil {
		return err
	}
	_, err = f.WriteString(text)
	if err = errors.Join(err, f.Sync(), f.Close()); err == nil {
		err = as.owns(f.Name())
	}
	if err == nil {
		err = os.Rename(f.Name(), name)
	}
	if err != nil {
		return errors.Join(err, os.Remove(f.Name()))
	}
	return nil
}
