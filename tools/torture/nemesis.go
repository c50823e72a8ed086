package torture

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/trapeze-run/trapeze/tools/torture/history"
)

// undoWithin limits how long an injector may take to undo its fault.
const undoWithin = 15 * time.Second

// Inject causes the faults in a plan and records the result of each. Faults start at their planned times and may overlap. Inject returns
// once all faults have been undone; if ctx is cancelled, it undoes them early. If a fault cannot be injected, its record says why, but
// Inject does not return an error. It returns an error if the plan was made for another fleet.
//
// The crowd submits the jobs that are themselves faults.
func Inject(ctx context.Context, crowd *Crowd, plan []history.Act) error {
	n := &nemesis{w: crowd.w, crowd: crowd, fleet: make(chan struct{}, 1), pods: map[string]chan struct{}{}}
	for _, p := range n.w.places() {
		n.pods[p.Name()] = make(chan struct{}, 1)
	}
	for _, act := range plan {
		if _, known := injectorNamed(act.Verb); !known {
			return fmt.Errorf("act %d: unknown verb %q", act.No, act.Verb)
		}
		if act.Pod != "" && n.pods[act.Pod] == nil {
			return fmt.Errorf("act %d: unknown pod or worker %q", act.No, act.Pod)
		}
	}
	var acting sync.WaitGroup
	for _, act := range plan {
		if !sleep(ctx, act.At-n.w.Since()) {
			break
		}
		acting.Go(func() { n.inject(ctx, act) })
	}
	acting.Wait()
	return nil
}

type nemesis struct {
	w     *World
	crowd *Crowd
	fleet chan struct{}            // held while a fault affects the whole fleet
	pods  map[string]chan struct{} // held while a fault affects this pod or worker
}

// inject causes one planned fault. Faults with the same target never overlap, even if one takes longer than planned.
func (n *nemesis) inject(ctx context.Context, act history.Act) {
	v, _ := injectorNamed(act.Verb)
	s := &injection{w: n.w, crowd: n.crowd, ctx: ctx, act: act}
	lock := make(chan struct{}, 1)
	switch v.aim {
	case atAll:
		lock = n.fleet
	case atPod, atWorker:
		lock = n.pods[act.Pod]
		s.aimAt(act.Pod)
	}
	select {
	case lock <- struct{}{}:
		defer func() { <-lock }()
	case <-ctx.Done():
		return
	}
	record := history.Fault{Act: act, Began: time.Now()}
	if s.at != nil {
		record.PodID = s.at.PodID()
	}
	err := v.do(s)
	record.Healed = time.Now()
	record.Struck, record.Note = s.outcome()
	if !s.began.IsZero() {
		record.Began = s.began
	}
	if err != nil && !errors.Is(err, errOver) {
		record.Error = err.Error()
	}
	n.w.RecordFault(record)
}

// errOver means that the run ended before the fault could be injected.
var errOver = errors.New("the run is over")

// injection is a fault that is being injected. The injector's function injects the fault, calls waitPlanned to wait for the planned
// duration, and always undoes the fault before it returns. The methods of injection are safe for concurrent use.
type injection struct {
	w     *World
	crowd *Crowd
	ctx   context.Context // cancelled when the run ends
	act   history.Act

	// These are the target's place and the pod or worker there, if the fault is aimed at one.
	at     *place
	pod    *Pod
	worker *Worker

	began time.Time // when the fault began; set only if it needed preparation

	mu     sync.Mutex
	struck int
	noted  map[string]any
}

// aimAt sets the target to the pod or worker with the given name.
func (s *injection) aimAt(name string) {
	for _, p := range s.w.Pods() {
		if p.Name() == name {
			s.pod, s.at = p, p.place
		}
	}
	for _, k := range s.w.Workers() {
		if k.Name() == name {
			s.worker, s.at = k, k.place
		}
	}
}

// hit adds to the number of targets that were hit.
func (s *injection) hit(n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.struck += n
}

// note adds a fact for the checker to the fault's record.
func (s *injection) note(key string, value any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.noted == nil {
		s.noted = map[string]any{}
	}
	s.noted[key] = value
}

// outcome returns the number of hits and the plan's note, including any added facts.
func (s *injection) outcome() (int, map[string]any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for key, value := range s.act.Note {
		if _, newer := s.noted[key]; !newer {
			if s.noted == nil {
				s.noted = map[string]any{}
			}
			s.noted[key] = value
		}
	}
	return s.struck, s.noted
}

// waitPlanned waits for the fault's planned duration or until the run is over.
func (s *injection) waitPlanned() { s.wait(s.act.For) }

// wait waits for d and returns false if the run ended first.
func (s *injection) wait(d time.Duration) bool { return sleep(s.ctx, d) }

// until waits until the condition holds. It returns false if that takes longer than d or if the run ends first.
func (s *injection) until(d time.Duration, met func() bool) bool {
	for deadline := time.Now().Add(d); !met(); {
		if time.Now().After(deadline) || !s.wait(20*time.Millisecond) {
			return false
		}
	}
	return true
}

// alive waits until the target's process is ready, because a fault may just have killed the previous process.
func (s *injection) alive() error {
	if !s.until(5*time.Second, s.at.Ready) {
		if s.ctx.Err() != nil {
			return errOver
		}
		return ErrNoProcess
	}
	return nil
}

// healing returns a context for undoing the fault. The context stays valid after the run is over.
func (s *injection) healing() (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.WithoutCancel(s.ctx), undoWithin)
}

// connect opens a superuser session that is unaffected by settings that faults have changed.
func (s *injection) connect(ctx context.Context) (*pgx.Conn, error) {
	config := s.w.Admin.Config().ConnConfig
	config.ConnectTimeout = 5 * time.Second
	config.Port = s.w.port()
	for name, value := range map[string]string{
		"statement_timeout": "0", "lock_timeout": "0", "idle_in_transaction_session_timeout": "0",
		"default_transaction_read_only": "off", "default_transaction_isolation": "read committed",
	} {
		config.RuntimeParams[name] = value
	}
	return pgx.ConnectConfig(ctx, config)
}

// admin runs do in a new superuser session.
func (s *injection) admin(ctx context.Context, do func(*pgx.Conn) error) error {
	conn, err := s.connect(ctx)
	if err != nil {
		return err
	}
	defer closeConn(conn)
	return do(conn)
}

// heal runs do in new sessions until it succeeds or the time limit for healing is reached.
func (s *injection) heal(do func(context.Context, *pgx.Conn) error) error {
	ctx, cancel := s.healing()
	defer cancel()
	for {
		err := s.admin(ctx, func(c *pgx.Conn) error { return do(ctx, c) })
		if err == nil {
			return nil
		}
		if !sleep(ctx, 200*time.Millisecond) {
			return fmt.Errorf("not healed within %s: %w", undoWithin, err)
		}
	}
}

func closeConn(c *pgx.Conn) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	_ = c.Close(ctx)
}

// sleep waits for d and returns false if ctx ended first.
func sleep(ctx context.Context, d time.Duration) bool {
	if d <= 0 {
		return ctx.Err() == nil
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return true
	}
}
