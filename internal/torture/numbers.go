package torture

import (
	"bufio"
	"context"
	"fmt"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"

	"github.com/trapeze-run/trapeze/internal/torture/history"
)

// sessionsSQL counts the sessions of each pod, which has a role of its own.
const sessionsSQL = `select usename::text, count(*)::int from pg_stat_activity where usename like 'pod%' group by usename`

// numbers asks all pods at once, so that one that is stopped does not delay the others.
func (s *sampler) numbers(ctx context.Context) ([]history.PodNumbers, error) {
	sessions := s.sessions(ctx)
	list := make([]history.PodNumbers, len(s.w.Pods()))
	var asking sync.WaitGroup
	for i, p := range s.w.Pods() {
		asking.Go(func() {
			one := history.PodNumbers{Pod: p.Name(), Goroutines: -1, Stuck: -1, Files: -1, RSS: -1, Connections: -1}
			if sessions != nil {
				one.Connections = sessions[p.Name()]
			}
			if pid := p.PID(); pid != 0 {
				one.Files, one.RSS = openFiles(pid), residentBytes(pid)
			}
			if url := p.URL(); url != "" {
				s.metrics(ctx, url, &one)
			}
			list[i] = one
		})
	}
	asking.Wait()
	return list, ctx.Err()
}

// sessions returns nil when the server does not say.
func (s *sampler) sessions(ctx context.Context) map[string]int {
	ctx, cancel := context.WithTimeout(ctx, numberWithin)
	defer cancel()
	rows, err := s.w.Admin.Query(ctx, sessionsSQL)
	if err != nil {
		return nil
	}
	defer rows.Close()
	count := map[string]int{}
	for rows.Next() {
		var name string
		var n int
		if rows.Scan(&name, &n) != nil {
			return nil
		}
		count[name] = n
	}
	if rows.Err() != nil {
		return nil
	}
	return count
}

// metrics asks a pod for what it says of itself.
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

// openFiles counts a process's file descriptors, -1 when it has gone or the system does not say.
func openFiles(pid int) int {
	list, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", pid))
	if err != nil {
		return -1
	}
	return len(list)
}

// residentBytes is what a process holds in memory, -1 when it has gone or the system does not say.
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
