package text

import "testing"

// A cursor that was encoded for one list is accepted by that list and by no other.
func FuzzListCursor(f *testing.F) {
	f.Add("1700000000000000.42", EncodeCursor("jobs", "1700000000000000.42"))
	f.Add("", "")
	f.Add("\xff", EncodeCursor("pipelines", "\x00"))
	f.Add("7", "AQ")
	f.Add("0", EncodeCursor("jobs", "1700000000000000.42")[:20]+"\n"+EncodeCursor("jobs", "1700000000000000.42")[20:])
	f.Fuzz(func(t *testing.T, place, text string) {
		ours := EncodeCursor("jobs", place)
		if back, err := DecodeCursor("jobs", ours); err != nil || back != place {
			t.Errorf("%q is sealed as %q and opened as %q: %v", place, ours, back, err)
		}
		if _, err := DecodeCursor("pipelines", ours); err == nil && place != "" {
			t.Errorf("the cursor %q of one list is accepted by another", ours)
		}
		if back, err := DecodeCursor("jobs", text); err == nil && EncodeCursor("jobs", back) != text {
			t.Errorf("%q is opened as %q, which is %q", text, back, EncodeCursor("jobs", back))
		}
	})
}
