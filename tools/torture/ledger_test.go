package torture

import (
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"

	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/tools/torture/history"
)

func startTestLedger(t *testing.T) (l *ledger, dir string) {
	t.Helper()
	dir = t.TempDir()
	l, err := startLedger(dir, func(err error) { t.Error(err) })
	if err != nil {
		t.Fatal(err)
	}
	return l, dir
}

func report(t *testing.T, l *ledger, job, fence int, event string) (status int) {
	t.Helper()
	response, err := http.Post(l.url(), "application/json",
		strings.NewReader(fmt.Sprintf(`{"job":"%d","fence":%d,"ev":%q,"pipeline":"0"}`+"\n", job, fence, event)))
	if err != nil {
		t.Error(err)
		return 0
	}
	_ = response.Body.Close()
	return response.StatusCode
}

func TestLedgerEffectBelowHighestFence(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	l, dir := startTestLedger(t)
	is.Equal(report(t, l, 1, 1, "start"), 200)
	is.Equal(report(t, l, 1, 1, "effect"), 200)
	is.Equal(report(t, l, 1, 2, "start"), 200)
	is.Equal(report(t, l, 1, 1, "effect"), 409) // a newer claim is already known
	is.Equal(report(t, l, 1, 1, "end"), 200)    // only effects are refused
	is.Equal(report(t, l, 2, 1, "effect"), 200) // each job has its own fences
	is.Equal(report(t, l, 1, 2, "effect"), 200)
	is.NoErr(l.close())
	lines, err := history.ReadLines[history.Line](dir + "/" + history.LedgerFile)
	is.NoErr(err)
	is.Equal(len(lines), 7) // refused lines are recorded, too
	for i, line := range lines {
		is.Equal(line.Refused, i == 3)
	}
}

func TestLedgerTotalOrder(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	l, dir := startTestLedger(t)
	var reporting sync.WaitGroup
	for job := range 8 {
		reporting.Go(func() {
			for range 50 {
				report(t, l, job, 1, "tick")
			}
		})
	}
	reporting.Wait()
	is.NoErr(l.close())
	lines, err := history.ReadLines[history.Line](dir + "/" + history.LedgerFile)
	is.NoErr(err)
	is.Equal(len(lines), 400)
	for i, line := range lines {
		is.Equal(line.N, int64(i+1))                    // the numbers follow the order of the file
		is.True(i == 0 || !line.T.Before(lines[i-1].T)) // and so do the times
	}
}

func TestWholeLinesAreHandedOn(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	var got []string
	w := &lines{each: func(line []byte) { got = append(got, string(line)) }}
	for _, part := range []string{"on", "e\ntwo\nth", "ree", "\n\nfive"} {
		n, err := w.Write([]byte(part))
		is.NoErr(err)
		is.Equal(n, len(part))
	}
	is.Equal(got, []string{"one", "two", "three", ""}) // the incomplete last line is not passed on
}
