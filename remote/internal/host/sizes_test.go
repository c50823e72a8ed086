//go:build !long

package host_test

import "time"

// reopensFor is the duration for which a worker opens one stream after another. The long test run uses a longer time.
const reopensFor = 400 * time.Millisecond
