package history

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"sync"

	"github.com/trapeze-run/trapeze/job"
)

// Run contains the records from a run's folder.
type Run struct {
	Settings Settings
	Plan     []Act
	Faults   []Fault
	Ledger   []Line
	Calls    []Call
	Samples  []Sample
	Pods     []Process
	Jobs     []job.JobRow
	Events   []job.Event
	Rows     []Row // nil if the rows were not exported

	Pipelines   []Pipeline
	Occurrences []Fire
	Schedules   []Schedule
	Keys        []Keyed
}

// Read reads a run's folder. the plan, the rows, the pipelines, the occurrences, the schedules and the keys are optional; Read fails if any other file is
// missing.
func Read(dir string) (*Run, error) {
	r := &Run{}
	raw, err := os.ReadFile(filepath.Join(dir, SettingsFile))
	if err != nil {
		return nil, err
	}
	if err := json.Unmarshal(raw, &r.Settings); err != nil {
		return nil, fmt.Errorf("%s: %w", SettingsFile, err)
	}
	return r, errors.Join(
		read(dir, PlanFile, &r.Plan), read(dir, FaultsFile, &r.Faults), read(dir, LedgerFile, &r.Ledger),
		read(dir, CallsFile, &r.Calls), read(dir, SamplesFile, &r.Samples), read(dir, PodsFile, &r.Pods),
		read(dir, JobsFile, &r.Jobs), read(dir, EventsFile, &r.Events), read(dir, RowsFile, &r.Rows),
		read(dir, PipelinesFile, &r.Pipelines), read(dir, OccurrencesFile, &r.Occurrences), read(dir, SchedulesFile, &r.Schedules),
		read(dir, KeysFile, &r.Keys),
	)
}

func read[T any](dir, name string, into *[]T) error {
	list, err := ReadLines[T](filepath.Join(dir, name))
	if errors.Is(err, os.ErrNotExist) && slices.Contains([]string{PlanFile, RowsFile, PipelinesFile, OccurrencesFile, SchedulesFile, KeysFile}, name) {
		return nil
	}
	*into = list
	return err
}

// ReadLines reads a file with one JSON object per line. For an empty file, the list is empty but not nil.
func ReadLines[T any](path string) (list []T, err error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	list = []T{}
	for decoder := json.NewDecoder(bufio.NewReaderSize(f, 1<<20)); ; {
		var one T
		if err := decoder.Decode(&one); errors.Is(err, io.EOF) {
			return list, nil
		} else if err != nil {
			return list, fmt.Errorf("%s, object %d: %w", filepath.Base(path), len(list)+1, err)
		}
		list = append(list, one)
	}
}

// Writer appends objects to a file, one per line. It writes each object in a separate system call, so that written lines survive a crash of
// the process. Its methods are safe for concurrent use.
type Writer struct {
	// Wrote, if not nil, is called with each object that has been written. Set it before the first Write.
	Wrote func(one any)

	mu sync.Mutex
	f  *os.File
}

// NewWriter creates a file in a run's folder.
func NewWriter(dir, name string) (*Writer, error) {
	f, err := os.OpenFile(filepath.Join(dir, name), os.O_CREATE|os.O_EXCL|os.O_WRONLY|os.O_APPEND, 0o644)
	if err != nil {
		return nil, err
	}
	return &Writer{f: f}, nil
}

// Write appends one object.
func (w *Writer) Write(one any) error {
	line, err := json.Marshal(one)
	if err != nil {
		return err
	}
	w.mu.Lock()
	_, err = w.f.Write(append(line, '\n'))
	w.mu.Unlock()
	if err == nil && w.Wrote != nil {
		w.Wrote(one)
	}
	return err
}

// Close closes the file.
func (w *Writer) Close() error { return w.f.Close() }
