package runner_test
import ("testing";"github.com/trapeze-run/trapeze/internal/pgtest")
func TestZZ(t *testing.T){
 url:=pgtest.URL(t); p,pool:=cable(t,url)
 exec(t,pool,"create table x (n int)")
 p.CutReplyOnce(func(b []byte) bool { if holds("commit")(b) {t.Logf("%q", b); return true}; return false})
 tx,err:=pool.Begin(t.Context()); t.Log(err); _,err=tx.Exec(t.Context(),"insert into x values (1)"); t.Log(err)
 err=tx.Commit(t.Context())
 t.Logf("%#v %v", err, err)
}
