//go:build long

package host_test

import "time"

// reopensFor is how long a worker opens one stream after another.
const reopensFor = time.Second
