package api

import (
	"testing"
	"time"

	"github.com/matryer/is"
)

func TestAClientOfIPv6IsAllOfItsBlock(t *testing.T) {
	is := is.New(t)
	is.Equal(neighbourhood("2001:db8::1"), neighbourhood("2001:db8::dead:beef")) // one host may send from each of them
	is.True(neighbourhood("2001:db8::1") != neighbourhood("2001:db8:0:1::1"))
	is.True(neighbourhood("192.0.2.1") != neighbourhood("192.0.2.2"))
	is.Equal(neighbourhood("@"), "@") // of a socket without addresses
}

func TestNoSettingLetsAStreamGoOnForLongWithoutTheRightToIt(t *testing.T) {
	is := is.New(t)
	o := StreamOptions{KeepAlive: time.Hour}.withDefaults()
	is.True(2*o.KeepAlive <= time.Minute)
}
