package identity

import (
	"testing"
	"time"

	"github.com/matryer/is"
)

// A jump is reported once, and only if no response time explains it.
func TestJumpsOfTheDatabasesClock(t *testing.T) {
	t.Parallel()
	base := time.Now()
	at := func(s float64) time.Time { return base.Add(time.Duration(s * float64(time.Second))) }
	for _, c := range []struct {
		name  string
		beats [][3]float64 // sent, received, and the database's time, in seconds
		want  []float64
	}{
		{"another zone or date", [][3]float64{{0, 0, 90_000}, {5, 5, 90_005}}, []float64{0, 0}},
		{"a slow response", [][3]float64{{0, 0, 0}, {5, 20, 19}, {25, 25, 25}}, []float64{0, 0, 0}},
		{"back by an hour", [][3]float64{{0, 0, 0}, {5, 6, 5 - 3600}, {11, 11, 11 - 3600}}, []float64{0, -3600, 0}},
		{"forward by ten days", [][3]float64{{0, 0, 0}, {5, 6, 864_006}, {11, 11, 864_011}}, []float64{0, 864_000, 0}},
		{"back and forth", [][3]float64{{0, 0, 0}, {5, 5, 5 - 60}, {10, 10, 10}}, []float64{0, -60, 60}},
		{"after an outage", [][3]float64{{0, 0, 0}, {600, 600, 600}}, []float64{0, 0}},
	} {
		t.Run(c.name, func(t *testing.T) {
			is := is.New(t)
			var clock Clock
			for i, b := range c.beats {
				jump := clock.Observe(at(b[0]), at(b[1]), at(b[2]).Round(0))
				is.Equal(jump.Round(time.Millisecond), time.Duration(c.want[i]*float64(time.Second)))
			}
		})
	}
}

func TestClockFollowsTheDatabase(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	var clock Clock
	is.True(time.Until(clock.Now()).Abs() < time.Minute) // before the first heartbeat
	for _, ahead := range []time.Duration{time.Hour, -240 * time.Hour} {
		sent := time.Now()
		clock.Observe(sent, sent, sent.Add(ahead).Round(0))
		is.True(clock.Now().Sub(sent.Add(ahead)).Abs() < time.Minute)
	}
}
