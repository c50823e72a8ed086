package main

import ()

// stream returns the number of the latest stream of an open worker with the given name, or 0 if there is none.
func (d database) stream(name string) (n int) {
	d.t.Helper()
	if err := d.store().Pool().QueryRow(d.t.Context(), `select coalesce(max(stream), 0) from trapeze.pods join trapeze.remote_workers using (boot) where name = $1 and closed_at is null`, name).Scan(&n); err != nil {
		d.t.Fatal(err)
	}
	return n
}
