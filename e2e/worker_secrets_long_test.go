//go:build long

package e2e

import (
	"context"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/api"
	"github.com/trapeze-run/trapeze/api/ui"
	"github.com/trapeze-run/trapeze/internal/cli"
	"github.com/trapeze-run/trapeze/internal/pgtest"
	"github.com/trapeze-run/trapeze/internal/podtest"
	"github.com/trapeze-run/trapeze/job"
	"github.com/trapeze-run/trapeze/runner"
)

// A worker's credentials, and the key that signs its assignments, must not appear in any response or log.
func TestRemoteWorkerSecretLeaks(t *testing.T) { //nolint:paralleltest // it sets the default log
	is := is.New(t)
	db := database{t, pgtest.URL(t)}
	pool := pgtest.Connect(t, db.url)
	log := &podtest.Log{}
	logger := slog.New(slog.NewTextHandler(log, &slog.HandlerOptions{Level: slog.LevelDebug}))
	before := slog.Default()
	slog.SetDefault(logger)
	defer slog.SetDefault(before)
	r, err := runner.New(pool, runner.Options{MaxAttempts: 1, Logger: logger, HeartbeatInterval: 200 * time.Millisecond})
	is.NoErr(err)
	defer r.Close()
	tokens := filepath.Join(t.TempDir(), "tokens.json")
	const admin = "admin-admin-admin-admin-1"
	is.NoErr(os.WriteFile(tokens, []byte(`{"tokens":[{"token":"`+puppetsToken+`","name":"puppet","roles":["worker"],"kinds":["demo.*"]},{"token":"`+admin+`","name":"root","roles":["platform_admin"]}]}`), 0o600))
	file, err := api.TokenFile(tokens)
	is.NoErr(err)
	doors := cli.ServeHandler(r, api.Options{Authenticate: file.Authenticate})
	web := httptest.NewUnstartedServer(doors)
	web.Config.Protocols = new(http.Protocols)
	web.Config.Protocols.SetUnencryptedHTTP2(true)
	web.Start()
	ctx, stop := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { _ = r.Run(ctx) })
	defer func() { stop(); web.CloseClientConnections(); running.Wait(); web.Close() }()
	pgtest.Wait(t, "the pod is ready", func() bool { ok, _ := r.Ready(); return ok })

	w := newPuppet(t, &pod{ReadyLine: cli.ReadyLine{HTTP: web.URL}}, puppetsToken)
	is.NoErr(w.opens(2, "demo.echo"))
	w.keepsBeating()
	made, err := r.Enqueue(t.Context(), runner.Raw{Name: "demo.echo"}, runner.AllowUnregistered())
	is.NoErr(err)
	a := w.takes()
	forged := newPuppet(t, &pod{ReadyLine: cli.ReadyLine{HTTP: web.URL}}, "nobody-nobody-nobody-nobody-1")
	_, said := forged.reports(a, `1`)
	is.True(said != nil)
	var key []byte
	is.NoErr(pool.QueryRow(t.Context(), `select stream_key from trapeze.remote_workers where pod = $1`, w.id).Scan(&key))
	secrets := []string{puppetsToken, forged.token}
	for _, secret := range [][]byte{key, a.GetToken()} {
		secrets = append(secrets, string(secret), hex.EncodeToString(secret), base64.RawStdEncoding.EncodeToString(secret), base64.RawURLEncoding.EncodeToString(secret), fmt.Sprint(secret))
	}
	shown := 0
	silent := func(where, text string) {
		shown += len(text)
		for _, secret := range secrets {
			if strings.Contains(text, secret) {
				t.Errorf("%s shows %q", where, secret)
			}
		}
	}
	look := func() {
		paths := []string{"/metrics"}
		for _, route := range api.Routes() {
			if route.Method == http.MethodGet {
				paths = append(paths, strings.NewReplacer(":id", fmt.Sprint(made.ID), ":name", "default").Replace(route.Path))
			}
		}
		for _, page := range ui.Routes() {
			paths = append(paths, "/ui"+strings.NewReplacer("{$}", "", "{id}", fmt.Sprint(made.ID), "{name}", "default").Replace(page.Path))
		}
		for _, path := range paths {
			patience := 10 * time.Second
			if strings.HasSuffix(path, "/stream") { // a stream does not end by itself
				patience = 100 * time.Millisecond
			}
			asking, cancel := context.WithTimeout(t.Context(), patience)
			request := httptest.NewRequestWithContext(asking, http.MethodGet, path, nil)
			request.Header.Set("Authorization", "Bearer "+admin)
			answer := httptest.NewRecorder()
			doors.ServeHTTP(answer, request)
			cancel()
			silent(path, answer.Body.String()+fmt.Sprint(answer.Header()))
		}
	}
	look()
	silent("trapeze pods", db.ok("pods", "--json"))
	_, err = w.reports(a, `"done"`)
	is.NoErr(err)
	pgtest.Wait(t, "it has ended", func() bool {
		j, err := r.GetJob(t.Context(), made.ID)
		return err == nil && j.State == job.Succeeded
	})
	look()
	silent("an error", said.Error())
	silent("trapeze export", db.ok("export", "events"))
	silent("trapeze doctor", trapeze(t, []string{"DATABASE_URL=" + db.url}, "doctor", "--json").out)
	silent("the log", log.String())
	is.True(shown > 10_000 && strings.Contains(log.String(), "remote worker accepted")) // the search covered real output
}
