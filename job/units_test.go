package job

import (
	"encoding/json"
	"math"
	"testing"
	"time"

	"github.com/matryer/is"
)

func TestDurationUnitEncoding(t *testing.T) {
	is := is.New(t)
	age, took := Seconds(48*time.Hour), Seconds(1500*time.Microsecond)
	lane := Lane{Name: "l", MaxAge: &age}
	encoded, err := json.Marshal(lane)
	is.NoErr(err)
	is.Equal(string(encoded), `{"name":"l","slots":null,"slots_per_pod":null,"inactivity_timeout_s":null,"max_age_s":172800,"start_within_s":null,`+
		`"requires_approval":false,"four_eyes":false,"enabled":false,"drained":false,"engine":"","next_engine":null,"template":null,"kinds":null}`)
	var again Lane
	is.NoErr(json.Unmarshal(encoded, &again))
	is.Equal(again, lane)
	encoded, err = json.Marshal(Occurrence{Took: &took})
	is.NoErr(err)
	var fire Occurrence
	is.NoErr(json.Unmarshal(encoded, &fire))
	is.Equal(fire.Took.Duration(), 1500*time.Microsecond) // fractions are preserved

	kept, err := age.Value()
	is.NoErr(err)
	is.Equal(kept, int64(172800))
	var s Seconds
	is.NoErr(s.Scan(int64(60)))
	is.Equal(s.Duration(), time.Minute)
	is.NoErr(s.Scan(0.25))
	is.Equal(s.Duration(), 250*time.Millisecond)
	is.True(s.Scan("a minute") != nil)
	is.True(json.Unmarshal([]byte(`"1m"`), &s) != nil)
	is.NoErr(json.Unmarshal([]byte(`1e300`), &s))
	is.Equal(s.Duration(), time.Duration(math.MaxInt64)) // large values do not overflow
	is.NoErr(json.Unmarshal([]byte(`-1e300`), &s))
	is.Equal(s.Duration(), time.Duration(math.MinInt64))
}

func TestLaneChangeEncoding(t *testing.T) {
	is := is.New(t)
	change := LaneChange{Slots: NoLimit[int](), InactivityTimeout: To(Seconds(time.Second)), MaxAge: NoLimit[Seconds]()}
	encoded, err := json.Marshal(change)
	is.NoErr(err)
	is.Equal(string(encoded), `{"slots":null,"inactivity_timeout_s":1,"max_age_s":null}`)
	var again LaneChange
	is.NoErr(json.Unmarshal(encoded, &again))
	is.Equal(again, change)
}
