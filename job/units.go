package job

import (
	"database/sql/driver"
	"encoding/json"
	"fmt"
	"math"
	"time"
)

// Seconds is a duration that JSON and the database represent as a number of seconds. The name of a field with this type ends with the unit:
// max_age_s. Convert from a [time.Duration], as in Seconds(48 * time.Hour). A number too large for a Duration is decoded as the longest
// Duration.
type Seconds time.Duration

// Duration returns s as a [time.Duration].
func (s Seconds) Duration() time.Duration { return time.Duration(s) }

// String formats s like a [time.Duration].
func (s Seconds) String() string { return s.Duration().String() }

// MarshalJSON implements [json.Marshaler].
func (s Seconds) MarshalJSON() ([]byte, error) { return json.Marshal(s.Duration().Seconds()) }

// Value implements [driver.Valuer].
func (s Seconds) Value() (driver.Value, error) { return int64(s.Duration() / time.Second), nil }

// UnmarshalJSON implements [json.Unmarshaler].
func (s *Seconds) UnmarshalJSON(raw []byte) error {
	var n *float64
	if err := json.Unmarshal(raw, &n); err != nil || n == nil {
		return err
	}
	return s.Scan(*n)
}

// Scan implements [database/sql.Scanner].
func (s *Seconds) Scan(column any) error {
	var n float64
	switch column := column.(type) {
	case int64:
		n = float64(column)
	case float64:
		n = column
	default:
		return fmt.Errorf("want a number of seconds, have %T", column)
	}
	switch n = math.Round(n * float64(time.Second)); {
	case n >= math.MaxInt64:
		*s = math.MaxInt64
	case n <= math.MinInt64:
		*s = math.MinInt64
	default:
		*s = Seconds(n)
	}
	return nil
}
