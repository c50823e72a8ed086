package torture

import (
	"bufio"
	"context"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/trapeze-run/trapeze/tools/torture/history"
)

// sessionsSQL counts each pod's sessions by state: busy, waiting inside the server, or waiting for the client. Each pod connects as a
// separate role.
const sessionsSQL = `
select usename::text, case when state = 'active' then coalesce(wait_event_type || '/' || wait_event, 'busy') else coalesce(state, '') end,
	count(*)::int
from pg_stat_activity where usename like 'pod%' group by 1, 2`

// numbers reads the resource usage of all pods concurrently, so that a frozen pod does not delay the others. For workers, it reads only the
// numbers that are available from the operating system.
func (s *sampler) numbers(ctx context.Context) ([]history.PodNumbers, error) {
	sessions := s.sessions(ctx)
	places := s.w.places()
	list := make([]history.PodNumbers, len(places))
	var asking sync.WaitGroup
	for i, p := range places {
		asking.Go(func() {
			one := history.PodNumbers{Pod: p.Name(), Goroutines: -1, Stuck: -1, Files: -1, RSS: -1, Connections: -1}
			if sessions != nil && i < len(s.w.Pods()) {
				one.Sessions, one.Connections = sessions[p.Name()], 0
				for _, n := range one.Sessions {
					one.Connections += n
				}
			}
			if pid := p.PID(); pid != 0 {
				one.PID, one.Files, one.RSS, one.Starved = pid, openFiles(pid), residentBytes(pid), starved(pid)
			}
			if i < len(s.w.Pods()) {
				if url := s.w.Pods()[i].URL(); url != "" {
					s.metrics(ctx, url, &one)
				}
			}
			list[i] = one
		})
	}
	asking.Wait()
	return list, ctx.Err()
}

// sessions counts the sessions by pod and state. It returns nil if the server does not respond.
func (s *sampler) sessions(ctx context.Context) map[string]map[string]int {
	ctx, cancel := context.WithTimeout(ctx, numberWithin)
	defer cancel()
	found, err := s.w.Admin.Query(ctx, sessionsSQL)
	if err != nil {
		return nil
	}
	type row struct {
		Pod, At string
		Count   int
	}
	rows, err := pgx.CollectRows(found, pgx.RowToStructByPos[row])
	if err != nil {
		return nil
	}
	count := map[string]map[string]int{}
	for _, r := range rows {
		if count[r.Pod] == nil {
			count[r.Pod] = map[string]int{}
		}
		count[r.Pod][r.At] = r.Count
	}
	return count
}

// metrics reads the metrics that a pod exports.
func (s *sampler) metrics(ctx context.Context, url string, into *history.PodNumbers) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url+"/metrics", nil)
	if err != nil {
		return
	}
	response, err := s.client.Do(request)
	if err != nil {
		return
	}
	defer response.Body.Close()
	for text := bufio.NewScanner(response.Body); text.Scan(); {
		name, value, _ := strings.Cut(text.Text(), " ")
		n, err := strconv.ParseFloat(value, 64)
		switch {
		case err != nil:
		case name == "go_goroutines":
			into.Goroutines = int(n)
		case name == "trapeze_stuck_handlers":
			into.Stuck = int(n)
		}
	}
}

// openFiles returns the number of a process's open file descriptors, or -1 if it cannot be determined.
func openFiles(pid int) int {
	list, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", pid))
	if err != nil {
		return -1
	}
	return len(list)
}

// starved returns how long a process's threads have waited for a CPU, or 0 if the time cannot be determined.
func starved(pid int) (sum time.Duration) {
	threads, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/schedstat", pid))
	for _, name := range threads {
		text, err := os.ReadFile(name)
		if err != nil {
			continue // the thread has ended
		}
		var ran, waited int64
		if _, err := fmt.Sscan(string(text), &ran, &waited); err == nil {
			sum += time.Duration(waited)
		}
	}
	return sum
}

// residentBytes returns a process's resident memory, or -1 if it cannot be determined.
func residentBytes(pid int) int64 {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/statm", pid))
	if err != nil {
		return -1
	}
	fields := strings.Fields(string(text))
	if len(fields) < 2 {
		return -1
	}
	pages, err := strconv.ParseInt(fields[1], 10, 64)
	if err != nil {
		return -1
	}
	return pages * int64(os.Getpagesize())
}
