package fleet_test

import (
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/internal/fleet"
)

// turns returns the Turns of n pods with the same kinds.
func turns(n int) []*fleet.Turns {
	pods := make([]*fleet.Turns, n)
	for i := range pods {
		pods[i] = &fleet.Turns{}
		pods[i].SetPlace(fleet.Place{Position: i, Pods: n})
	}
	return pods
}

// claims delivers a notification to every pod, and returns how long each pod takes to claim.
func claims(pods []*fleet.Turns, u fleet.Up, wait time.Duration) map[int]time.Duration {
	var mu sync.Mutex
	found := map[int]time.Duration{}
	heard := time.Now()
	for i, pod := range pods {
		pod.Hear(u, false, func() {
			mu.Lock()
			defer mu.Unlock()
			found[i] = time.Since(heard)
		})
	}
	time.Sleep(wait)
	synctest.Wait()
	mu.Lock()
	defer mu.Unlock()
	return found
}

func TestImmediateAndDelayedClaims(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		is := is.New(t)
		for _, n := range []int{1, 2, 3, 50} {
			chosen := map[int]bool{}
			for seed := range 200 {
				at := claims(turns(n), fleet.ParseUp(fmt.Sprint(seed), 0), 0)
				is.Equal(len(at), min(n, 2))
				for pod := range at {
					chosen[pod] = true
				}
			}
			is.Equal(len(chosen), min(n, fleet.Front)) // each pod of the front gets a turn
			at := claims(turns(n), fleet.ParseUp("1", 0), time.Hour)
			is.Equal(len(at), n)
			for _, after := range at {
				is.True(after == 0 || after >= time.Duration(n)*20*time.Millisecond && after < time.Duration(n)*40*time.Millisecond)
			}
		}
	})
}

// Engines that cannot take all jobs pass the notification on until every pod has claimed exactly once.
func TestForwardedNotification(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		is := is.New(t)
		pods := turns(50)
		total := map[int]int{}
		u, sent, forRest := fleet.ParseUp("777", 0), 0, 0
		for more := true; more; sent++ {
			more = false
			rest := u.ForRest()
			if rest {
				forRest++
			}
			for pod := range claims(pods, u, 0) {
				is.Equal(rest, pod >= fleet.Front) // all pods whose turn it is also hear the notification
				total[pod]++
				if next, ok := pods[pod].Claimed(true); ok {
					u, more = fleet.ParseUp(next.Payload(), 0), true
				}
			}
			time.Sleep(fleet.Interval)
		}
		is.Equal(sent, 6)    // 2, 2, 4, 8, 16 and 18 pods
		is.Equal(forRest, 3) // for 8, 16 and 18 pods
		is.Equal(len(total), 50)
		for _, n := range total {
			is.Equal(n, 1)
		}
	})
}

func TestBusyPodForwardedNotification(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		is := is.New(t)
		pod := &fleet.Turns{}
		pod.SetPlace(fleet.Place{Position: 0, Pods: 3})
		passesOn := func(left bool) bool {
			for seed := 0; ; seed++ { // until it is the pod's turn
				u := fleet.ParseUp(fmt.Sprint(seed), 0)
				if len(claims([]*fleet.Turns{pod}, u, fleet.Interval)) > 0 {
					_, ok := pod.Claimed(left)
					return ok
				}
			}
		}
		is.True(passesOn(true))
		is.True(!passesOn(true))
		is.True(!passesOn(false))
		is.True(passesOn(true))
	})
}

func TestNotificationsAmongBusyPods(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		is := is.New(t)
		pods := turns(50)
		var sent atomic.Int32
		var notify func(u fleet.Up)
		notify = func(u fleet.Up) {
			for _, pod := range pods {
				pod.Hear(u, false, func() {
					if next, ok := pod.Claimed(true); ok {
						sent.Add(1)
						go notify(next)
					}
				})
			}
		}
		for seed := range 3 {
			notify(fleet.ParseUp(fmt.Sprint(seed), 0))
			time.Sleep(time.Hour)
			synctest.Wait()
			is.True(sent.Load() <= int32(seed+1)*60)
		}
	})
}

// The rest of the fleet hears of new jobs only from the front. A busy pod of the front therefore keeps notifying the rest, and loses no
// notification.
func TestBusyFrontPodNotifications(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		is := is.New(t)
		for _, c := range []struct {
			position, pods int
			told           bool
		}{{0, 8, false}, {0, 9, true}, {7, 9, true}, {8, 9, false}, {0, 50, true}, {8, 50, false}, {49, 50, false}} {
			pod, left := &fleet.Turns{}, func() bool { return true }
			pod.SetPlace(fleet.Place{Position: c.position, Pods: c.pods})
			var told atomic.Int32
			rest := fleet.NewSender(fleet.RestInterval, func(fleet.Up) { told.Add(1) })
			hear := func(seed int) {
				pod.Hear(fleet.ParseUp(fmt.Sprint(seed), 0), false, func() {
					if next, ok := pod.Claimed(left()); ok && next.ForRest() {
						is.Equal(next.Skip, fleet.Front)
						rest.Send(next, false)
					}
				})
				time.Sleep(100 * time.Millisecond)
				synctest.Wait()
			}
			for seed := range 1000 { // 100 s
				hear(seed)
			}
			if !c.told {
				is.Equal(told.Load(), int32(0))
				continue
			}
			is.True(told.Load() >= 45 && told.Load() <= 101)
			before := told.Load()
			hear(1)
			time.Sleep(time.Hour)
			synctest.Wait()
			is.True(told.Load() > before) // even though the rest was notified less than a second ago
			before = told.Load()
			claimed := 0
			left = func() bool { claimed++; return claimed%2 == 0 } // the pod is busy only for an instant
			for seed := range 100 {
				hear(seed)
			}
			is.Equal(told.Load(), before)
		}
	})
}

func TestUnknownPositionOrLimitedLanes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		is := is.New(t)
		for seed := range 50 {
			u := fleet.ParseUp(fmt.Sprint(seed), 0)
			is.Equal(len(claims([]*fleet.Turns{{}}, u, 0)), 1)
			sharing := turns(50)[7]
			var claimed atomic.Bool
			sharing.Hear(u, true, func() { claimed.Store(true) })
			synctest.Wait()
			is.True(claimed.Load())
		}
	})
}

func TestNotificationBurst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		is := is.New(t)
		var near, far atomic.Int32
		pods := turns(50)
		for range 1000 { // 10 s
			pods[0].Hear(fleet.ParseUp("1", 0), true, func() { near.Add(1) })
			pods[9].Hear(fleet.Up{Seed: "1", Skip: 64}, false, func() { far.Add(1) }) // never its turn
			time.Sleep(10 * time.Millisecond)
		}
		is.True(near.Load() >= 190 && near.Load() <= 201)
		is.True(far.Load() >= 5 && far.Load() <= 10)
	})
}

func TestForeignNotificationPayloads(t *testing.T) {
	is := is.New(t)
	is.Equal(fleet.ParseUp("", 4711), fleet.Up{Seed: "4711"}) // from a program in another language
	is.Equal(fleet.ParseUp("9+4", 1), fleet.Up{Seed: "9", Skip: 4})
	for _, odd := range []string{"9+", "9+x", "9+-3", "9+99999999999999999999"} {
		u := fleet.ParseUp(odd, 1)
		is.Equal(u.Seed, "9")
		is.True(u.Skip >= 0)
	}
}

func TestSenderNotificationMerging(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		is := is.New(t)
		var sent []fleet.Up
		s := fleet.NewSender(fleet.Interval, func(u fleet.Up) { sent = append(sent, u) })
		s.Flush() // sends nothing, and does not delay the first notification
		s.Send(fleet.Up{}, true)
		is.Equal(len(sent), 1) // sent before Send returned
		for range 100 {
			s.Send(fleet.Up{}, true)
		}
		is.Equal(len(sent), 1)
		s.Send(fleet.Up{Seed: "1", Skip: 2}, false) // does not replace the new notification
		time.Sleep(fleet.Interval)
		synctest.Wait()
		is.Equal(sent[1:], []fleet.Up{{}})
		s.Send(fleet.Up{Seed: "1", Skip: 2}, false)
		s.Send(fleet.Up{}, false) // replaces the passed-on notification, because it reaches more pods
		s.Flush()
		is.Equal(sent[2:], []fleet.Up{{}})
		s.Flush()
		is.Equal(len(sent), 3)
		time.Sleep(time.Hour)
		s.Send(fleet.Up{}, false)
		synctest.Wait()
		is.Equal(len(sent), 4)
	})
}

// A claim without a notification, such as one at the end of a job, also shows that the pod is no longer busy.
func TestBusyPodOutOfJobs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		is := is.New(t)
		pod := &fleet.Turns{}
		pod.SetPlace(fleet.Place{Position: 0, Pods: 3})
		passesOn := func() bool {
			for seed := 0; ; seed++ { // until it is the pod's turn
				if len(claims([]*fleet.Turns{pod}, fleet.ParseUp(fmt.Sprint(seed), 0), fleet.Interval)) > 0 {
					_, ok := pod.Claimed(true)
					return ok
				}
			}
		}
		is.True(passesOn())
		is.True(!passesOn())
		_, ok := pod.Claimed(false)
		is.True(!ok)
		is.True(passesOn())
	})
}
