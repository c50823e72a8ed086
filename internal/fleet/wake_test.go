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

// claims delivers a notification to every pod. It returns how long each pod takes to claim, and the pods that notify all pods if jobs are left.
func claims(pods []*fleet.Turns, u fleet.Up, wait time.Duration) (found map[int]time.Duration, tell []int) {
	var mu sync.Mutex
	found = map[int]time.Duration{}
	heard := time.Now()
	for i, pod := range pods {
		pod.Hear(u, false, func(as fleet.Claiming) {
			mu.Lock()
			defer mu.Unlock()
			if found[i] = time.Since(heard); as.Escalates {
				tell = append(tell, i)
			}
		})
	}
	time.Sleep(wait)
	synctest.Wait()
	mu.Lock()
	defer mu.Unlock()
	return found, tell
}

func fresh(seed int) fleet.Up { return fleet.ParseUp(fmt.Sprint(seed), 0, false) }
func left(seed int) fleet.Up  { return fleet.ParseUp(fmt.Sprint(seed), 0, true) }

func TestNewJobs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		is := is.New(t)
		for _, n := range []int{1, 2, 3, 8, 50} {
			chosen := map[int]bool{}
			for seed := range 200 {
				at, _ := claims(turns(n), fresh(seed), 0)
				is.Equal(len(at), min(n, 2))
				for pod := range at {
					chosen[pod] = true
				}
			}
			is.Equal(len(chosen), min(n, fleet.Front)) // each pod of the front gets a turn
			at, tell := claims(turns(n), fresh(1), time.Hour)
			is.Equal(len(at), min(n, fleet.Front)) // the others in the front claim soon, in case the first are dead
			for _, after := range at {
				is.True(after <= 7*time.Millisecond)
			}
			if n <= 2 {
				is.Equal(len(tell), 0) // all pods have claimed
				continue
			}
			is.Equal(len(tell), 1)
			is.Equal(at[tell[0]], time.Duration(0))
		}
	})
}

func TestJobsLeftBehind(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		is := is.New(t)
		for _, n := range []int{1, 3, 8, 50} {
			chosen := map[int]bool{}
			for seed := range 200 {
				at, _ := claims(turns(n), left(seed), 0)
				is.Equal(len(at), min(n, fleet.Front))
				for pod := range at {
					chosen[pod] = true
				}
			}
			is.Equal(len(chosen), n)
			at, tell := claims(turns(n), left(1), time.Hour)
			is.Equal(len(at), n)
			is.Equal(len(tell), 0) // each pod has claimed
			for _, after := range at {
				is.True(after <= 50*time.Millisecond)
			}
		}
	})
}

// Every pod that hears a steady stream of notifications claims, but the number of claims does not grow with the number of pods.
func TestNotificationStream(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		is := is.New(t)
		for _, n := range []int{8, 50, 400} {
			for _, up := range []func(int) fleet.Up{fresh, left} {
				pods, first := turns(n), int32(2)
				if up(1).Left {
					first = fleet.Front
				}
				total := make([]atomic.Int32, n)
				for seed := range 250 {
					for i, pod := range pods {
						pod.Hear(up(seed), false, func(fleet.Claiming) { total[i].Add(1) })
					}
					time.Sleep(fleet.Interval)
				}
				var sum int32
				for i := range total {
					is.True(total[i].Load() > 0 == (up(1).Left || i < fleet.Front))
					sum += total[i].Load()
				}
				is.True(sum <= 250*(first+1)+int32(n))
			}
		}
	})
}

// A pod that finds jobs left behind claims for each notification, even if it never comes first.
func TestJobsFoundInStream(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		is := is.New(t)
		pod := turns(50)[49]
		var n atomic.Int32
		for range 250 {
			pod.Hear(left(3), false, func(fleet.Claiming) { n.Add(1); pod.Found() })
			time.Sleep(2 * fleet.Interval)
			synctest.Wait()
		}
		is.Equal(n.Load(), int32(250))
	})
}

func TestUnknownPositionOrLimitedLanes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		is := is.New(t)
		for seed := range 50 {
			at, tell := claims([]*fleet.Turns{{}}, fresh(seed), 0)
			is.Equal(len(at), 1)
			is.Equal(len(tell), 0)
			for _, up := range []fleet.Up{fresh(seed), left(seed)} {
				for _, sharing := range []*fleet.Turns{turns(50)[7], turns(50)[9]} {
					var claimed atomic.Bool
					sharing.Hear(up, true, func(fleet.Claiming) { claimed.Store(true) })
					synctest.Wait()
					is.True(claimed.Load())
				}
			}
		}
	})
}

// A notification that arrives while a claim is planned does not make the pod forget that it must notify all pods.
func TestMergedClaims(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		is := is.New(t)
		for seed := range 50 {
			pods := turns(50)
			_, tell := claims(pods, fresh(seed), 0)
			var told atomic.Int32
			claim := func(as fleet.Claiming) {
				if as.Escalates {
					told.Add(1)
				}
			}
			is.Equal(len(tell), 1)
			pods[tell[0]].Hear(fresh(seed), false, claim)
			pods[tell[0]].Hear(left(seed), true, claim)
			pods[tell[0]].Hear(fresh(seed+1), false, claim)
			time.Sleep(time.Second)
			synctest.Wait()
			is.Equal(told.Load(), int32(1))
		}
	})
}

// A pod that is about to claim because jobs were left behind must also promote those of a notification of new jobs.
func TestMergedNotificationPromotes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		pod := turns(50)[3]
		var as fleet.Claiming
		claim := func(c fleet.Claiming) { as = c }
		pod.Hear(left(1), true, func(fleet.Claiming) {})
		synctest.Wait()
		pod.Hear(left(2), true, claim) // planned, because the pod has just claimed
		pod.Hear(fresh(3), true, claim)
		time.Sleep(time.Second)
		synctest.Wait()
		is.New(t).True(as.Promotes)
	})
}

func TestNotificationBurst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		is := is.New(t)
		var near, far atomic.Int32
		pods := turns(50)
		for range 1000 { // 10 s
			pods[0].Hear(fresh(1), true, func(fleet.Claiming) { near.Add(1) })
			pods[9].Hear(fresh(1), false, func(fleet.Claiming) { far.Add(1) })
			time.Sleep(10 * time.Millisecond)
		}
		most := int32(10*time.Second/fleet.Interval) + 1
		is.True(near.Load() > most*9/10 && near.Load() <= most)
		is.Equal(far.Load(), int32(0)) // it hears new jobs for another reason, such as a client that watches
	})
}

func TestForeignNotificationPayload(t *testing.T) {
	is := is.New(t)
	is.Equal(fleet.ParseUp("", 4711, false), fleet.Up{Seed: "4711"}) // from a program in another language
	is.Equal(fleet.ParseUp("9", 1, true), fleet.Up{Seed: "9", Left: true})
}

func TestPositionsInNotification(t *testing.T) {
	is := is.New(t)
	var l fleet.Late
	is.Equal(l.Take(), "")
	at := time.Date(2026, 1, 2, 3, 4, 5, 6000, time.UTC)
	l.Add("default", 10, at.Add(time.Second))
	l.Add("default", 10, at)
	l.Add("default", 10, at.Add(time.Second))
	l.Add("a lane", -3, at)
	payload := "9" + l.Take()
	is.Equal(fleet.ParseUp(payload, 1, false), fleet.Up{Seed: "9", Late: fleet.Positions{"default": {10: at}, "a lane": {-3: at}}})
	is.Equal(l.Take(), "")
	for i := range 1000 {
		l.Add(fmt.Sprint(i), 10, at)
	}
	is.Equal(l.Take(), "") // too long for a notification
	is.Equal(l.Take(), "")
}

func TestSenderNotificationMerging(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		is := is.New(t)
		var sent atomic.Int32
		s := fleet.NewSender(fleet.Interval, func() { sent.Add(1) })
		s.Flush() // sends nothing, and does not delay the first notification
		s.Send(true)
		is.Equal(sent.Load(), int32(1)) // sent before Send returned
		for range 100 {
			s.Send(true)
		}
		is.Equal(sent.Load(), int32(1))
		time.Sleep(fleet.Interval)
		synctest.Wait()
		is.Equal(sent.Load(), int32(2))
		s.Send(false)
		s.Flush()
		is.Equal(sent.Load(), int32(3))
		s.Flush()
		is.Equal(sent.Load(), int32(3))
		time.Sleep(time.Hour)
		s.Send(false)
		synctest.Wait()
		is.Equal(sent.Load(), int32(4))
	})
}
