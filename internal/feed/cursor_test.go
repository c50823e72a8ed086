package feed

import (
	"errors"
	"reflect"
	"strconv"
	"testing"

	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/internal/store/view"
	"github.com/trapeze-run/trapeze/job"
)

func TestStreamCursorRoundTrip(t *testing.T) {
	is := is.New(t)
	_, no, err := ofJob(cursor{"5f0c2a91", aJob, "7"}.String(), 3)
	is.NoErr(err)
	is.Equal(no, 7)
	_, no, err = ofJob("812.3.9", 3) // the event's own cursor
	is.NoErr(err)
	is.Equal(no, 9)
	_, _, err = ofJob("812.4.9", 3)
	is.True(err != nil) // the cursor of another job
	at := view.Position{Xid: 812, Job: 3, EventNo: 9}
	epoch, got, err := ofAll(cursor{"5f0c2a91", everything, at.String()}.String())
	is.NoErr(err)
	is.Equal(epoch, "5f0c2a91")
	is.Equal(got, at)
	within := view.Seen{Upto: 20, Open: []uint64{13}}
	for _, s := range []delivered{
		{seen: view.Seen{Upto: 12, Open: []uint64{3, 7}}},
		{seen: view.Seen{Upto: 12}, within: &within, at: view.Position{Job: 3, EventNo: 9}},
	} {
		_, got, err := ofPipeline(cursor{"5f0c2a91", aPipeline, s.String()}.String())
		is.NoErr(err)
		is.Equal(got, s)
	}
}

// A valid cursor survives being parsed and formatted. Any other cursor is reported as the client's error.
func FuzzStreamCursor(f *testing.F) {
	for _, text := range []string{"", "0", "now", "1.2.3", "5f0c2a91-j7", "5f0c2a91-g1.2.3", "5f0c2a91-p12_3_7~20_13~3.9", "5f0c2a91-p12~20~",
		"5f0c2a91-p1_2", "5f0c2a91-j2147483648", "5f0c2a91-g", "\xff\xff\xff\xff\xff\xff\xff\xff-j1", "5f0c2a91-p0~0~0.0~0"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		if epoch, s, err := ofPipeline(text); err == nil {
			again := cursor{epoch, aPipeline, s.String()}.String()
			if _, same, err := ofPipeline(again); err != nil || !reflect.DeepEqual(same, s) {
				t.Errorf("%q is %+v and written as %q, which is %+v: %v", text, s, again, same, err)
			}
		} else if !errors.Is(err, job.ErrInvalid) {
			t.Errorf("%q of a pipeline: %v", text, err)
		}
		if epoch, no, err := ofJob(text, 1); err == nil && epoch != "" {
			again := cursor{epoch, aJob, strconv.Itoa(no)}.String()
			if _, same, err := ofJob(again, 1); err != nil || same != no {
				t.Errorf("%q is %d and written as %q, which is %d: %v", text, no, again, same, err)
			}
		} else if err != nil && !errors.Is(err, job.ErrInvalid) {
			t.Errorf("%q of a job: %v", text, err)
		}
		if epoch, at, err := ofAll(text); err == nil && epoch != "" {
			again := cursor{epoch, everything, at.String()}.String()
			if _, same, err := ofAll(again); err != nil || same != at {
				t.Errorf("%q is %+v and written as %q, which is %+v: %v", text, at, again, same, err)
			}
		} else if err != nil && !errors.Is(err, job.ErrInvalid) {
			t.Errorf("%q of everything: %v", text, err)
		}
	})
}
