package job

import (
	"database/sql/driver"
	"encoding/json"
	"fmt"
	"math"
	"time"
)

// Seconds and Millis are durations that JSON and the database represent as a number of seconds or milliseconds. The name of a field with
// one of these types ends with the unit: max_age_s, poll_interval_ms. Convert from a [time.Duration], as in Seconds(48 * time.Hour). A
// number too large for a Duration is decoded as the longest Duration.
type (
	// Seconds is a duration stored in seconds.
	Seconds time.Duration
	// Millis is a duration stored in milliseconds.
	Millis time.Duration
)

// Duration returns s as a [time.Duration].
func (s Seconds) Duration() time.Duration { return time.Duration(s) }

// Duration returns m as a [time.Duration].
func (m Millis) Duration() time.Duration { return time.Duration(m) }

// String formats s like a [time.Duration].
func (s Seconds) String() string { return s.Duration().String() }

// String formats m like a [time.Duration].
func (m Millis) String() string { return m.Duration().String() }

// MarshalJSON implements [json.Marshaler].
func (s Seconds) MarshalJSON() ([]byte, error) { return json.Marshal(s.Duration().Seconds()) }

// MarshalJSON implements [json.Marshaler].
func (m Millis) MarshalJSON() ([]byte, error) {
	return json.Marshal(float64(m) / float64(time.Millisecond))
}

// UnmarshalJSON implements [json.Unmarshaler].
func (s *Seconds) UnmarshalJSON(raw []byte) error { return fromJSON(raw, s, time.Second) }

// UnmarshalJSON implements [json.Unmarshaler].
func (m *Millis) UnmarshalJSON(raw []byte) error { return fromJSON(raw, m, time.Millisecond) }

// Scan implements [database/sql.Scanner].
func (s *Seconds) Scan(column any) error { return fromColumn(column, s, time.Second) }

// Scan implements [database/sql.Scanner].
func (m *Millis) Scan(column any) error { return fromColumn(column, m, time.Millisecond) }

// Value implements [driver.Valuer].
func (s Seconds) Value() (driver.Value, error) { return int64(s.Duration() / time.Second), nil }

// Value implements [driver.Valuer].
func (m Millis) Value() (driver.Value, error) { return m.Duration().Milliseconds(), nil }

func fromJSON[T ~int64](raw []byte, into *T, unit time.Duration) error {
	var n *float64
	if err := json.Unmarshal(raw, &n); err != nil || n == nil {
		return err
	}
	return fromColumn(*n, into, unit)
}

func fromColumn[T ~int64](column any, into *T, unit time.Duration) error {
	var n float64
	switch column := column.(type) {
	case int64:
		n = float64(column)
	case float64:
		n = column
	default:
		return fmt.Errorf("want a number of %s, have %T", unit, column)
	}
	switch n = math.Round(n * float64(unit)); {
	case n >= math.MaxInt64:
		*into = math.MaxInt64
	case n <= math.MinInt64:
		*into = math.MinInt64
	default:
		*into = T(n)
	}
	return nil
}
