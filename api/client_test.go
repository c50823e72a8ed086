package api

import (
	"testing"
	"time"

	"github.com/matryer/is"
)

func TestAClientOfIPv6IsAllOfItsBlock(t *testing.T) {
	is := is.New(t)
	is.Equal(neighbourhood("2001:db8::1"), neighbourhood("2001:db8::dead:beef")) // one host may use any address of its /64
	is.True(neighbourhood("2001:db8::1") != neighbourhood("2001:db8:0:1::1"))
	is.True(neighbourhood("192.0.2.1") != neighbourhood("192.0.2.2"))
	is.Equal(neighbourhood("@"), "@") // the remote address of a Unix socket
}

func TestNoSettingLetsAStreamGoOnForLongWithoutTheRightToIt(t *testing.T) {
	is := is.New(t)
	o := StreamOptions{KeepAlive: time.Hour}.withDefaults()
	is.True(2*o.KeepAlive <= time.Minute)
}
