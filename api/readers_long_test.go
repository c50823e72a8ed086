//go:build long

package api_test

import (
	"testing"
	"time"
)

func TestThreeHundredReconnectingReaders(t *testing.T) {
	readEverything(t, 300, 300, 20*time.Second)
}
