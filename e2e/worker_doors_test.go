package e2e

import (
	"encoding/binary"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/api"
	"github.com/trapeze-run/trapeze/internal/access"
	"github.com/trapeze-run/trapeze/internal/cli"
	"github.com/trapeze-run/trapeze/internal/inside"
	"github.com/trapeze-run/trapeze/internal/pgtest"
	"github.com/trapeze-run/trapeze/internal/store/admin"
	"github.com/trapeze-run/trapeze/remote/remotepb"
	"github.com/trapeze-run/trapeze/runner"
)

// TestRemoteWorkerCallsByRole calls each procedure of the worker protocol with each role. A similar test
// exists for the API routes.
func TestRemoteWorkerCallsByRole(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	r, err := runner.New(pgtest.Pool(t), runner.Options{Logger: slog.New(slog.DiscardHandler)})
	is.NoErr(err)
	defer r.Close()
	roles := append([]access.Role{{Name: "nobody", Scope: access.All}, {Name: "own_everything", Permissions: access.Permissions, Scope: access.Own}}, access.BuiltIn...)
	for _, what := range access.Permissions {
		roles = append(roles, access.Role{Name: "only_" + strings.ReplaceAll(string(what), ":", "_"), Permissions: []access.Permission{what}, Scope: access.All})
	}
	for _, role := range roles {
		if _, builtIn := access.BuiltInRole(role.Name); !builtIn {
			_, err := inside.Of(r).Store.Pool().Exec(t.Context(), `insert into `+inside.Of(r).Store.Schema()+`.roles (name, permissions, scope) values ($1, $2, $3)`,
				role.Name, append([]access.Permission{}, role.Permissions...), role.Scope)
			is.NoErr(err)
		}
	}
	doors := cli.ServeHandler(r, api.Options{ChangesPerSecond: -1, Authenticate: func(r *http.Request) (api.Principal, error) {
		if who := r.Header.Get("X-Who"); who != "" {
			return api.Principal{Name: "user of " + who, Roles: []string{who}}, nil
		}
		return api.Principal{}, api.ErrUnauthenticated
	}})
	service := remotepb.File_trapeze_v1_workers_proto.Services().Get(0)
	is.True(service.Methods().Len() >= 5)
	for i := range service.Methods().Len() {
		method := service.Methods().Get(i)
		path := fmt.Sprintf("/%s/%s", service.FullName(), method.Name())
		call := func(header ...string) string { return callWorkers(doors, path, method.IsStreamingServer(), header...) }
		for _, role := range roles {
			got := call("X-Who", role.Name)
			if may := slices.Contains(role.Permissions, access.WorkersStream); may == strings.Contains(got, "permission_denied") {
				t.Errorf("%s as %s: want allowed %t: %s", path, role.Name, may, got)
			}
		}
		is.True(strings.Contains(call(), "unauthenticated"))                                                                                           // without credentials
		is.True(strings.Contains(call("X-Who", "worker", "Origin", "https://elsewhere.example", "Sec-Fetch-Site", "cross-site"), "permission_denied")) // a request from a page on another site
	}
	trail, err := admin.AuditTrail(t.Context(), inside.Of(r).Store, admin.AuditFilter{Actor: "user of viewer", Limit: 100})
	is.NoErr(err)
	is.True(len(trail) > 0) // rejections are audited, though only a sample of a flood
	is.True(!trail[0].Allowed && strings.HasPrefix(trail[0].Action, "POST /trapeze.v1.Workers/") && strings.Contains(trail[0].Reason, "workers:stream"))
	is.True(trail[0].RequestID != "" && trail[0].Source != "")
}

// workerDoors returns the HTTP handler of a pod that trusts the X-Who header and binds every worker to kinds that begin with "gpu.".
func workerDoors(t *testing.T, o api.Options) (*runner.Runner, http.Handler) {
	t.Helper()
	r, err := runner.New(pgtest.Pool(t), runner.Options{Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.Close)
	o.Authenticate = func(r *http.Request) (api.Principal, error) {
		if who := r.Header.Get("X-Who"); who != "" {
			return api.Principal{Name: who, Roles: []string{access.Worker}, Kinds: []string{"gpu.*"}}, nil
		}
		return api.Principal{}, api.ErrUnauthenticated
	}
	return r, cli.ServeHandler(r, o)
}

func TestRemoteWorkerUnboundKindsAudit(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	r, doors := workerDoors(t, api.Options{ChangesPerSecond: -1})
	for range 100 {
		got := callWorkersWith(doors, remotepb.WorkersStreamJobsProcedure, true, `{"topics":["gpu.a","secrets"],"slots":1}`, "X-Who", "gpu-team")
		is.True(strings.Contains(got, "permission_denied") && strings.Contains(got, "secrets"))
	}
	trail, err := admin.AuditTrail(t.Context(), inside.Of(r).Store, admin.AuditFilter{Actor: "gpu-team", Limit: 200})
	is.NoErr(err)
	is.True(len(trail) >= 60 && len(trail) < 70) // only a sample of a flood is audited
	one := trail[0]
	is.True(!one.Allowed && strings.Contains(one.Reason, `"secrets"`) && one.Source == "192.0.2.1" && one.RequestID != "")
	is.Equal(one.Action, "POST "+remotepb.WorkersStreamJobsProcedure)
}

func TestWrongTokensAtWorkerRoutes(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	_, doors := workerDoors(t, api.Options{ChangesPerSecond: 1e-9, ChangesBurst: 3})
	from := func(address string, header ...string) string {
		return callWorkersWith(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			r.RemoteAddr = address
			doors.ServeHTTP(w, r)
		}), remotepb.WorkersHeartbeatProcedure, false, `{}`, header...)
	}
	for range 20 {
		is.True(!strings.Contains(from("[2001:db8::1]:5", "X-Who", "gpu-team"), "too_often")) // authenticated calls do not count toward the address's limit
	}
	for range 3 {
		is.True(strings.Contains(from("[2001:db8::1]:5"), "unauthenticated"))
	}
	is.True(strings.Contains(from("[2001:db8::2]:6"), "too_often"))                       // an address in the same block
	is.True(!strings.Contains(from("[2001:db8::2]:6", "X-Who", "gpu-team"), "too_often")) // authenticated calls from that address still work
	is.True(strings.Contains(from("192.0.2.7:7"), "unauthenticated"))                     // other addresses are not limited
}

// callWorkers calls a procedure with the Connect protocol and an empty message, and returns the response.
func callWorkers(doors http.Handler, path string, streams bool, header ...string) string {
	return callWorkersWith(doors, path, streams, "{}", header...)
}

func callWorkersWith(doors http.Handler, path string, streams bool, body string, header ...string) string {
	media := "application/json"
	if streams {
		media, body = "application/connect+json", string(binary.BigEndian.AppendUint32([]byte{0}, uint32(len(body))))+body
	}
	request := httptest.NewRequest(http.MethodPost, path, strings.NewReader(body))
	request.Header.Set("Content-Type", media)
	for i := 0; i < len(header); i += 2 {
		request.Header.Set(header[i], header[i+1])
	}
	answer := httptest.NewRecorder()
	doors.ServeHTTP(answer, request)
	return answer.Body.String()
}
