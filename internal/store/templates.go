package store

import "strings"

// LaneSettings lists the settings that a lane takes from its template, each with the given prefix, such as "n.".
func LaneSettings(of string) string {
	return of + strings.Join([]string{"slots", "slots_per_pod", "enabled", "requires_approval", "max_age_s", "start_within_s", "inactivity_timeout_s", "four_eyes"}, ", "+of)
}

// LimitValues lists the values that a lane's limit takes from its template's, each with the given prefix.
func LimitValues(of string) string {
	return of + strings.Join([]string{"slots", "weight", "rate", "per", "burst"}, ", "+of)
}

// MakeLanes returns the CTEs that make those of the given lanes that do not exist, from the templates that they match, together with the templates'
// limits. For a lane that is marked as idle, they remove the mark: a concurrent deletion then skips the row, or has deleted it, so that the insert makes
// it again. lanes is a query. The CTE made has the name and template of each of these lanes. Plan: one probe of lanes_pkey for each lane, and of
// lane_templates for each lane to be made; inserts.
func MakeLanes(lanes string) string {
	return `made as (
	insert into trapeze.lanes (name, ` + LaneSettings("") + `, template)
	select w.lane, ` + LaneSettings("t.") + `, case when t.name = w.lane then t.template else t.name end from (` + lanes + `) w cross join lateral trapeze.lane_rules(w.lane) t
	where t.name <> w.lane or t.idle_since is not null order by w.lane
	on conflict (name) do update set idle_since = null
	returning name, template
), made_limits as (
	insert into trapeze.limits (scope, name, key, ` + LimitValues("") + `)
	select x.scope, m.name, x.key, ` + LimitValues("x.") + ` from made m join trapeze.limits x on x.scope = 'lane' and x.name = m.template
	where coalesce(x.slots, x.weight, x.rate) is not null on conflict do nothing
)`
}
