package api

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"testing"
	"testing/synctest"
	"time"

	"github.com/matryer/is"
)

// slowResponse is a response to a slow client. Every write blocks for the duration in the field each.
type slowResponse struct {
	http.ResponseWriter
	each time.Duration
}

func (r slowResponse) Write(b []byte) (int, error) {
	time.Sleep(r.each) // uses the fake clock of synctest
	return len(b), nil
}

func TestExportToSlowClient(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		is := is.New(t)
		export := func(each time.Duration, writes int) (took time.Duration, err error) {
			to := slowResponse{httptest.NewRecorder(), each}
			p := &patientWriter{to, http.NewResponseController(to), exportTimeout}
			began := time.Now()
			for range writes {
				if _, err = p.Write(make([]byte, 64<<10)); err != nil {
					break
				}
			}
			return time.Since(began), err
		}
		took, err := export(20*time.Second, 1000)
		is.True(errors.Is(err, errSlowClient))
		is.True(took <= time.Minute) // not the 5.5 hours that 1,000 slow writes would take
		took, err = export(200*time.Millisecond, 1000)
		is.NoErr(err) // a reader that never stalls may take a long time
		is.Equal(took, 200*time.Second)
	})
}
