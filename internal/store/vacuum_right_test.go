package store_test

import (
	"testing"

	"github.com/trapeze-run/trapeze/internal/pgtest"
	"github.com/trapeze-run/trapeze/internal/store/upkeep"
)

// A runner whose role may not vacuum the tables can find that out beforehand. If it tries anyway, PostgreSQL skips the table without an
// error.
func TestVacuumWithoutTableOwnership(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.exec(`alter table trapeze.submissions set (autovacuum_enabled = off)`)
	w.exec(`insert into trapeze.submissions (key, job_id, fingerprint) select g, g, '' from generate_series(1, 5000) g`)
	w.exec(`delete from trapeze.submissions`)
	w.pool.Reset() // PostgreSQL 14 reports a session's statistics only when the session ends or runs another statement
	config := w.pool.Config()
	role := "only_runs_" + config.ConnConfig.Database
	w.exec(`create role ` + role)
	t.Cleanup(func() {
		w.exec(`drop owned by ` + role)
		w.exec(`drop role ` + role)
	})
	w.exec(`grant usage on schema trapeze to ` + role)
	w.exec(`grant select, insert, update, delete on all tables in schema trapeze to ` + role)
	var b upkeep.Behind
	pgtest.Wait(t, "the dead rows are counted", func() bool {
		list, err := upkeep.TablesBehind(w.ctx(), w.Store, 100)
		w.is.NoErr(err)
		for _, b = range list {
			if b.Name == "submissions" && b.Vacuum {
				return true
			}
		}
		return false
	})
	w.is.True(b.May) // the owner may vacuum the table
	w.exec(`alter database ` + config.ConnConfig.Database + ` set role = '` + role + `'`)
	w.Pool().Reset()
	list, err := upkeep.TablesBehind(w.ctx(), w.Store, 100)
	w.exec(`alter database ` + config.ConnConfig.Database + ` reset role`)
	w.is.NoErr(err)
	w.is.Equal(len(list), 1)
	w.is.True(!list[0].May)                              // the other role may not vacuum the table
	w.is.NoErr(upkeep.Vacuum(w.ctx(), w.Store, list[0])) // vacuuming without permission is not an error
}
