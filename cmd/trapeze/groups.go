package main

import "github.com/spf13/cobra"

// groups are the headings of --help, with the commands below them: what somebody looks for at night stands first.
var groups = []struct {
	id, title string
	commands  []string
}{
	{"look", "What is going on:", []string{"ps", "job", "jobs", "pipeline", "pipelines", "lanes", "pods", "events", "doctor", "audit", "export"}},
	{"act", "What to do about it:", []string{"kill", "stop", "retry", "nice", "approve", "complete", "delete", "abort", "drain", "resume", "pause",
		"unpause", "freeze", "thaw", "lane", "cron", "retention"}},
	{"run", "Running it:", []string{"demo", "serve", "worker", "enqueue", "migrate"}},
}

// group puts the commands of root below their headings.
func group(root *cobra.Command) {
	of := map[string]string{}
	for _, g := range groups {
		root.AddGroup(&cobra.Group{ID: g.id, Title: g.title})
		for _, name := range g.commands {
			of[name] = g.id
		}
	}
	for _, c := range root.Commands() {
		c.GroupID = of[c.Name()]
	}
}
