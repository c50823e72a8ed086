//go:build long

package main

import "testing"

func TestTwentyRemoteWorkersShareJobsWithoutARollback(t *testing.T) { workersShareJobs(t, 20) }
