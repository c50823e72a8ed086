//go:build long

package host_test

import "time"

// reopensFor is the duration for which a worker opens one stream after another.
const reopensFor = time.Second
