//go:build environments && wall

package environments

import "time"

// time.WallOffset exists only with the overlay of runWithWallClock.
func init() {
	setWallClock = func(ahead time.Duration) { time.WallOffset.Store(int64(ahead / time.Second)) }
}
