package feed

import (
	"testing"

	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/internal/store"
)

func TestCursorsAreReadAsTheyWereWritten(t *testing.T) {
	is := is.New(t)
	_, no, err := ofJob(cursor{"5f0c2a91", aJob, "7"}.String(), 3)
	is.NoErr(err)
	is.Equal(no, 7)
	_, no, err = ofJob("812.3.9", 3) // the event's own
	is.NoErr(err)
	is.Equal(no, 9)
	_, _, err = ofJob("812.4.9", 3)
	is.True(err != nil) // another job's
	at := store.Position{Xid: 812, Job: 3, EventNo: 9}
	epoch, got, err := ofAll(cursor{"5f0c2a91", everything, at.String()}.String())
	is.NoErr(err)
	is.Equal(epoch, "5f0c2a91")
	is.Equal(got, at)
	within := store.Seen{Upto: 20, Open: []uint64{13}}
	for _, s := range []sight{
		{seen: store.Seen{Upto: 12, Open: []uint64{3, 7}}},
		{seen: store.Seen{Upto: 12}, within: &within, at: store.Position{Job: 3, EventNo: 9}},
	} {
		_, got, err := ofPipeline(cursor{"5f0c2a91", aPipeline, s.String()}.String())
		is.NoErr(err)
		is.Equal(got, s)
	}
}

func FuzzCursors(f *testing.F) {
	for _, text := range []string{"", "0", "now", "1.2.3", "5f0c2a91-j7", "5f0c2a91-g1.2.3", "5f0c2a91-p12_3_7~20_13~3.9"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		if epoch, s, err := ofPipeline(text); err == nil {
			again := cursor{epoch, aPipeline, s.String()}.String()
			if _, _, err := ofPipeline(again); err != nil {
				t.Errorf("%q was read and written as %q, which cannot be read: %v", text, again, err)
			}
		}
		_, _, _ = ofJob(text, 1)
		_, _, _ = ofAll(text)
	})
}
