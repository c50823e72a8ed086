package torture

import "slices"

// Fault is a kind of fault that can be requested by name.
type Fault struct {
	Name      string   // such as "F24"
	What      string   // a short description
	Injectors []string // the injectors that the nemesis can use to cause it, if any
	Always    string   // how every run causes it anyway, if applicable
	Cannot    string   // why no run can cause it, if applicable
}

// Faults lists the kinds of faults that a fleet on one machine can encounter, except those specific to operators and schedules. A run
// injects only faults that have injectors, and the weights of the injectors determine how often.
var Faults = []Fault{
	{Name: "F1", What: "pods killed, one or all together, at any moment or exactly between two statements", Injectors: of("F1")},
	{Name: "F2", What: "zombie: a pod frozen beyond its lease, then resumed", Injectors: of("F2")},
	{Name: "F3", What: "a pod frozen for about as long as its lease", Injectors: of("F3")},
	{Name: "F4", What: "a handler returns success after its lease was lost", Injectors: of("F4")},
	{Name: "F5", What: "SIGTERM while handlers run", Injectors: of("F5")},
	{Name: "F6", What: "SIGTERM twice, SIGTERM then SIGKILL, SIGTERM during the start", Injectors: of("F6")},
	{Name: "F7", What: "SIGTERM while finishes travel slowly to the database", Injectors: of("F7")},
	{Name: "F8", What: "a pod that gets a twentieth of a CPU", Injectors: of("F8")},
	{Name: "F9", What: "panics in a handler, and in a goroutine of one, which ends the process", Injectors: of("F9")},
	{Name: "F10", What: "os.Exit in a handler, pod after pod", Injectors: of("F10")},
	{Name: "F11", What: "runtime.Goexit in a handler", Injectors: of("F11")},
	{Name: "F12", What: "handlers that ignore their context: busy, or blocked forever", Injectors: of("F12")},
	{Name: "F13", What: "goroutines leaked by a handler", Injectors: of("F13")},
	{Name: "F14", What: "handlers that need more memory than their pod may use", Injectors: of("F14")},
	{Name: "F15", What: "unknown kinds, and a pod that knows only some kinds", Injectors: of("F15")},
	{Name: "F16", What: "args of another version of the handler", Injectors: of("F16")},
	{Name: "F17", What: "fan-outs beyond their limit", Always: "clients keep submitting them; each is refused as a whole"},
	{Name: "F18", What: "the last children of a fan-out end at the same moment", Always: "clients keep submitting fan-outs of 2 to 50"},
	{Name: "F19", What: "the server restarted as if after a power failure", Injectors: of("F19")},
	{Name: "F20", What: "the server down for longer than the lease", Injectors: of("F20")},
	{Name: "F21", What: "backends terminated, once or in a storm", Injectors: of("F21")},
	{Name: "F22", What: "the server frozen with all its processes", Injectors: of("F22")},
	{Name: "F23", What: "connections that are dead one way or both, half-open, reset, slow, cut in the middle, or refused", Injectors: of("F23")},
	{Name: "F24", What: "the reply to a COMMIT lost: of claims, finishes, submissions, cancels, and any", Injectors: of("F24")},
	{Name: "F25", What: "clients that disconnect in the middle of a submission or a cancel", Injectors: of("F25")},
	{Name: "F26", What: "no connection left for ordinary users", Injectors: of("F26")},
	{Name: "F27", What: "statement_timeout, lock_timeout and idle_in_transaction_session_timeout set low", Injectors: of("F27")},
	{Name: "F28", What: "serialization failures, and rows locked in the opposite order", Injectors: of("F28")},
	{Name: "F29", What: "the database is read-only; the primary lost and its synchronous standby promoted", Injectors: of("F29")},
	{Name: "F30", What: "the disk of the history is full", Injectors: of("F30")},
	{Name: "F31", What: "the disk of the write-ahead log is full",
		Cannot: "the write-ahead log shares the cluster's disk, and a full one stops the server, which F19, F20 and a test of the runner cover"},
	{Name: "F32", What: "a transaction pooler between pods and database",
		Cannot: "a pod's route to the database, through its proxy, is fixed at its start; a pooler would need a different setup"},
	{Name: "F33", What: "a listener stuck in a transaction, so that notifications pile up", Injectors: of("F33")},
	{Name: "F34", What: "a storm of forged notifications", Injectors: of("F34")},
	{Name: "F35", What: "a long transaction that holds the oldest snapshot", Injectors: of("F35")},
	// libfaketime has no effect on Go programs, which read the clock without libc. The clock itself cannot be changed, because the whole
	// machine shares it.
	{Name: "F36", What: "the database's clock jumps by an hour, as far as leases can tell", Injectors: of("F36")},
	{Name: "F37", What: "migrations by many pods at once",
		Always: "every run begins with all pods starting at once on an empty database"},
	{Name: "F38", What: "pods of two versions", Cannot: "there is no older release yet"},
	{Name: "F39", What: "tampering: a running job's row deleted, the table of live jobs locked", Injectors: of("F39")},
	{Name: "F40", What: "the database restored from a backup while pods live",
		Cannot: "the records of a run cannot distinguish history that was undone from history that was lost"},
	{Name: "F49", What: "the same submission from many clients at once", Injectors: of("F49")},
	{Name: "F69", What: "assignments that do not reach a remote worker or are not acknowledged", Injectors: of("F69")},
	{Name: "F70", What: "a remote worker that reports on jobs it no longer owns", Injectors: of("F70")},
	{Name: "F71", What: "a remote worker killed, stopped, cut off or moved to another pod, or the pod that serves it killed", Injectors: of("F71")},
	{Name: "F72", What: "a remote worker that lies", Cannot: "the workers of a run are honest programs; e2e/worker_crafted_test.go covers lying ones"},
}

// FaultNamed returns the fault with the given name.
func FaultNamed(name string) (Fault, bool) {
	i := slices.IndexFunc(Faults, func(f Fault) bool { return f.Name == name })
	if i < 0 {
		return Fault{}, false
	}
	return Faults[i], true
}

// of returns the injectors that cause a fault, in table order.
func of(fault string) (names []string) {
	for _, v := range injectors {
		if v.fault == fault {
			names = append(names, v.name)
		}
	}
	return names
}
