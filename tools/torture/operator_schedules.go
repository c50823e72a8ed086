package torture

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"time"

	"github.com/trapeze-run/trapeze/tools/torture/history"
)

// schedulesTable creates the table in which the torture records each version of a schedule, with the first occurrence that was unprocessed
// at the time of the change. A trigger writes the record in the transaction that makes the change, so the order of changes and occurrences
// is certain.
const schedulesTable = `
create table torture_schedules (n bigserial, at timestamptz not null default clock_timestamp(), schedule text not null,
	expression text not null, paused boolean not null, anchor timestamptz not null, undecided timestamptz);
create function torture_notes_schedule() returns trigger language plpgsql security definer set search_path = public as $$
begin
	if tg_op = 'INSERT' then
		insert into torture_schedules (schedule, expression, paused, anchor) values (new.name, new.expression, new.paused, new.anchor);
	elsif new.anchor <> old.anchor then
		insert into torture_schedules (schedule, expression, paused, anchor, undecided)
		values (new.name, new.expression, new.paused or new.removed, new.anchor, case when old.planned then old.next_at end);
	end if;
	return null;
end $$`

const (
	noteSchedules       = `create trigger torture_notes after insert or update on trapeze.schedules for each row execute function torture_notes_schedule()`
	occurrencesSinceSQL = `
select (select count(distinct f.schedule) = $1 from trapeze.schedule_occurrences f where f.fire_at > $2 and not f.manual)
	and not exists (select from trapeze.schedules where next_at < now() - interval '5 seconds')`
)

// theSchedules lists the schedules of every run with their names, initial expressions and policies for missed occurrences. The last
// schedule is never changed, and fires so often that several of its occurrences are processed together if no pod works for two seconds.
var theSchedules = []struct{ name, expression, missed string }{
	{"tick", "@every 2s", "catch_up"},
	{"cron", "*/3 * * * * *", "coalesce"},
	{"steady", "*/1 * * * * *", "catch_up"},
}

// rhythms lists the expressions that the torture uses for schedules. The checker supports only these two forms: a fixed interval, and every
// Nth second of a minute.
var rhythms = []string{"@every 2s", "@every 3s", "@every 1500ms", "*/2 * * * * *", "*/3 * * * * *", "*/5 * * * * *"}

// calendar is an operator who creates and changes schedules.
type calendar struct {
	c *Crowd
	r *rand.Rand
}

// prepare creates the schedules.
func (k *calendar) prepare(ctx context.Context) error {
	if _, err := k.c.w.Admin.Exec(ctx, noteSchedules); err != nil {
		return err
	}
	for _, s := range theSchedules {
		body := fmt.Sprintf(`{"expression":%q,"kind":"demo.noop","missed":%q,"catch_up":1000}`, s.expression, s.missed)
		if !k.c.schedule(ctx, "set", s.name, http.MethodPut, "", body) {
			return fmt.Errorf("schedule %q could not be made", s.name)
		}
	}
	return nil
}

// run changes a schedule every few seconds until ctx is cancelled. Each time, it pauses the schedule for a while, changes its expression,
// or triggers it.
func (k *calendar) run(ctx context.Context) {
	for sleep(ctx, 3*time.Second+time.Duration(k.r.IntN(6000))*time.Millisecond) {
		name := theSchedules[k.r.IntN(len(theSchedules)-1)].name
		switch k.r.IntN(4) {
		case 0:
			k.c.schedule(ctx, "pause", name, http.MethodPost, "/pause", "")
			sleep(ctx, time.Duration(k.r.IntN(4000))*time.Millisecond)
			k.c.schedule(context.WithoutCancel(ctx), "resume", name, http.MethodPost, "/resume", "")
		case 1:
			k.c.schedule(ctx, "trigger", name, http.MethodPost, "/trigger", "")
		default:
			rhythm := rhythms[k.r.IntN(len(rhythms))]
			k.c.schedule(ctx, "set", name, http.MethodPatch, "", fmt.Sprintf(`{"expression":%q}`, rhythm))
		}
	}
}

// schedule sends an operator's command and reports whether it succeeded. It retries until a response reports success or the time limit is
// reached. A trigger is sent only once, because otherwise the schedule could fire twice.
func (c *Crowd) schedule(ctx context.Context, verb, name, method, path, body string) bool {
	ctx, cancel := context.WithTimeout(ctx, undoWithin)
	defer cancel()
	for try := 0; ; try++ {
		if pod, ok := c.pod(try); ok {
			call := c.begin(0, verb+" schedule", pod)
			call.Args = json.RawMessage(body)
			if body == "" {
				call.Args = nil
			}
			c.send(ctx, &call, pod, method, "/admin/workers/schedules/"+name+path, call.Args)
			if call.Outcome == history.OK || verb == "trigger" {
				return call.Outcome == history.OK
			}
		}
		if !sleep(ctx, 300*time.Millisecond) {
			return false
		}
	}
}

// EndSchedules waits until every schedule has fired again after the faults have been undone, and then pauses them all. The pause is
// necessary because firing schedules wake pods, which would hide a missed wake-up. If the fleet no longer fires schedules, the checker
// detects it.
func (c *Crowd) EndSchedules(ctx context.Context) error {
	c.w.enter("last occurrences", restWithin)
	for _, s := range theSchedules {
		if !c.schedule(ctx, "resume", s.name, http.MethodPost, "/resume", "") {
			return errors.Join(context.Cause(ctx), fmt.Errorf("schedule %q could not be resumed", s.name))
		}
	}
	c.w.ask(ctx, restWithin, occurrencesSinceSQL, len(theSchedules), time.Now())
	for _, s := range theSchedules {
		if !c.schedule(ctx, "pause", s.name, http.MethodPost, "/pause", "") {
			return errors.Join(context.Cause(ctx), fmt.Errorf("schedule %q could not be paused", s.name))
		}
	}
	return nil
}
