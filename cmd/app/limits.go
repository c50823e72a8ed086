package app

import (
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/trapeze-run/trapeze/internal/cli"
	"github.com/trapeze-run/trapeze/internal/text"
	"github.com/trapeze-run/trapeze/job"
)

const limitsPath = "/admin/workers/limits"

func newLimitCommand() *cobra.Command {
	return parent(&cobra.Command{
		Use:   "limit",
		Short: "Limit the jobs of each key, or of one key, in a lane or of a kind",
		Long: `Limit how many jobs of a key run at a time, on all pods together. A job's key says whose job it is: see trapeze enqueue --key. A limit of a
lane counts the key's jobs of all kinds in that lane. A limit of a kind counts its jobs of that kind in all lanes, and takes precedence over
the limit that the program declares. A limit of one key takes precedence over the limit of each key.

Keys without a limit share a lane fairly: a key with many jobs does not delay the jobs of other keys. A weight changes the share.`,
	}, newLimitListCommand(), newLimitSetCommand(), newLimitRemoveCommand(), newLimitUsageCommand())
}

// limitFlags adds the flags that identify a limit. The returned function reads them, and requires a lane or a kind.
func limitFlags(c *cobra.Command) func() (job.LimitOf, error) {
	var lane, kind, key string
	c.Flags().StringVar(&lane, "lane", "", "the limit of a key in this lane")
	c.Flags().StringVar(&kind, "kind", "", "the limit of a key for jobs of this kind")
	c.Flags().StringVar(&key, "key", job.EachKey, "the key; * is each key")
	return func() (job.LimitOf, error) {
		switch {
		case (lane == "") == (kind == ""):
			return job.LimitOf{}, cli.Usage("want either --lane or --kind")
		case lane != "":
			return job.LimitOf{Scope: job.LaneScope, Name: lane, Key: key}, nil
		}
		return job.LimitOf{Scope: job.KindScope, Name: kind, Key: key}, nil
	}
}

func newLimitListCommand() *cobra.Command {
	return &cobra.Command{
		Use:     "ls",
		Aliases: []string{"list"},
		Short:   "List the limits of keys",
		Long: `List the limits of keys. The key * is the limit for each key that has none. Limits that programs declare for kinds are not listed:
trapeze limit usage shows which limits apply.`,
		Example: "  trapeze limit ls",
		Args:    cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			return onClient(c, func(at *cli.Client) error {
				list := cli.ListAll[job.KeyLimit](c.Context(), at, limitsPath, "limits", cli.QueryOf("limit", "0"))
				return cli.List(c, "SCOPE NAME KEY SLOTS WEIGHT RATE", list, func(l job.KeyLimit) []string {
					return []string{l.Scope, l.Name, text.Short(l.Key, 60), numberText(l.Slots), numberText(l.Weight), rateText(l)}
				})
			})
		},
	}
}

// numberText formats a number. It returns an empty string for nil.
func numberText(n *int) string {
	if n == nil {
		return ""
	}
	return strconv.Itoa(*n)
}

func newLimitSetCommand() *cobra.Command {
	var slots, weight, rate string
	var per time.Duration
	var burst int
	c := &cobra.Command{
		Use:   "set",
		Short: "Set the limit of each key or of one key, or the rate of a lane",
		Long: `Set the limit of each key, or with --key of one key, and keep the values that are not given. Every pod applies it at once. If the limit is
higher, waiting jobs start as soon as slots are free. If it is lower, running jobs continue, and other jobs wait until fewer run.

--rate limits how many jobs of the lane start per interval, on all pods together, regardless of their keys. Retries and next steps count as well.

The value none removes a value, so that the limit of each key or the default applies. trapeze limit rm removes the limit.`,
		Example: `  trapeze limit set --lane mail --slots 3
  trapeze limit set --lane mail --key tenant-42 --slots 10 --weight 2
  trapeze limit set --kind fetch --slots 1 --reason "the provider asks for it"
  trapeze limit set --lane mail --rate 10 --per 1s --burst 5`,
		Args: cobra.NoArgs,
	}
	of := limitFlags(c)
	c.Flags().StringVar(&slots, "slots", "", "maximum number of the key's jobs that run at a time, at least 1, or none")
	c.Flags().StringVar(&weight, "weight", "", "with --lane: the key's share beside keys of weight 1, from 1 to 100, or none")
	c.Flags().StringVar(&rate, "rate", "", "with --lane: number of jobs that start per interval, at least 1, or none")
	c.Flags().DurationVar(&per, "per", time.Second, "the interval of the rate")
	c.Flags().IntVar(&burst, "burst", 1, "number of jobs that may start at once after a pause")
	c.RunE = func(c *cobra.Command, _ []string) (err error) {
		var change job.KeyLimitChange
		if change.LimitOf, err = of(); err != nil {
			return err
		}
		for _, flag := range []struct {
			name, value string
			into        *job.Limit[int]
		}{{"slots", slots, &change.Slots}, {"weight", weight, &change.Weight}, {"rate", rate, &change.Rate}} {
			if !c.Flags().Changed(flag.name) {
				continue
			}
			if err := number(flag.into)(flag.value); err != nil {
				return cli.Usage("--%s %q: %w", flag.name, flag.value, err)
			}
		}
		given := c.Flags().Changed
		if given("per") {
			seconds := job.Seconds(per)
			change.Per = &seconds
		}
		if given("burst") {
			change.Burst = &burst
		}
		if (given("rate") || given("per") || given("burst")) && !given("key") {
			change.Key = ""
		}
		if err := change.Validate(); err != nil {
			return cli.Usage("%w", err)
		}
		return onClient(c, func(at *cli.Client) error {
			done, err := cli.Do[job.KeyLimitChanged](c.Context(), at, http.MethodPatch, limitsPath, change)
			if err != nil {
				return err
			}
			return printLimitChanged(c, done)
		})
	}
	return c
}

func newLimitRemoveCommand() *cobra.Command {
	c := &cobra.Command{
		Use:     "rm",
		Aliases: []string{"remove"},
		Short:   "Remove the limit of each key or of one key, or the rate of a lane",
		Long: `Remove the limit of each key, or with --key of one key, or with --rate the rate of a lane. The limit of each key, or else the default, then applies to that key. Jobs that
wait for the limit start as soon as slots are free.`,
		Example: "  trapeze limit rm --lane mail --key tenant-42",
		Args:    cobra.NoArgs,
	}
	of := limitFlags(c)
	rate := c.Flags().Bool("rate", false, "remove the rate of the lane")
	c.RunE = func(c *cobra.Command, _ []string) error {
		l, err := of()
		if err != nil {
			return err
		}
		if *rate {
			l.Key = ""
		}
		return onClient(c, func(at *cli.Client) error {
			path := limitsPath + "?" + cli.QueryOf("scope", l.Scope, "name", l.Name, "key", l.Key).Encode()
			done, err := cli.Do[job.KeyLimitChanged](c.Context(), at, http.MethodDelete, path, nil)
			if err != nil {
				return err
			}
			return printLimitChanged(c, done)
		})
	}
	return c
}

// printLimitChanged prints the result of changing a limit.
func printLimitChanged(c *cobra.Command, done job.KeyLimitChanged) error {
	of := "each key"
	switch done.Key {
	case job.EachKey:
	case "":
		of = "all jobs"
	default:
		of = "key " + text.Short(done.Key, 60)
	}
	held := ""
	if done.Held > 0 {
		held = "; " + text.Count(done.Held, "pending job waits", "pending jobs wait") + " for fewer to run"
	}
	return cli.Done(c, done, "limit of %s in %s %s: %s; before: %s%s", of, done.Scope, done.Name, limitText(done.After), limitText(done.Before), held)
}

// rateText describes the rate of a lane.
func rateText(l job.KeyLimit) string {
	if l.Rate == nil {
		return ""
	}
	return fmt.Sprintf("%d per %s, burst %d", *l.Rate, l.Per.Duration(), *l.Burst)
}

// limitText describes the values of a limit.
func limitText(l *job.KeyLimit) string {
	var values []string
	if l != nil && l.Slots != nil {
		values = append(values, fmt.Sprint("slots ", *l.Slots))
	}
	if l != nil && l.Weight != nil {
		values = append(values, fmt.Sprint("weight ", *l.Weight))
	}
	if l != nil && l.Rate != nil {
		values = append(values, rateText(*l))
	}
	if values == nil {
		return "none"
	}
	return strings.Join(values, ", ")
}

func newLimitUsageCommand() *cobra.Command {
	var lane, kind, key string
	c := &cobra.Command{
		Use:   "usage",
		Short: "List the keys that wait most, and which limit they wait for",
		Long: `List the keys with the most waiting jobs, at most 100, one row for each lane and kind. WAITING is the number of due jobs that wait for
other jobs of their key, OLDEST the age of the first of them. USED is the number of the key's jobs in the lane that run or may run next, with its
maximum. OF_KIND is the same for the kind in all lanes. WAITS_FOR names the limit that keeps the next job from starting:

  lane     the limit of the key in the lane: raise it with trapeze limit set --lane
  window   the lane is full: the jobs take turns with those of other keys
  kind     the limit of the key for the kind: raise it with trapeze limit set --kind

With very many keys, those with few jobs may be missing.`,
		Example: "  trapeze limit usage --lane mail\n  trapeze limit usage --key tenant-42",
		Args:    cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			return onClient(c, func(at *cli.Client) error {
				use, err := cli.Get[job.KeysInUse](c.Context(), at, limitsPath+"/usage", cli.QueryOf("lane", lane, "kind", kind, "key", key))
				if err != nil {
					return err
				}
				now := time.Now()
				err = cli.List(c, "KEY LANE KIND WAITING OLDEST USED OF_KIND WAITS_FOR", cli.Rows(use.Keys), func(k job.KeyUse) []string {
					return []string{text.Short(k.Key, 60), k.Lane, k.Kind, waitingText(k), text.Ago(&k.Oldest, now), fmt.Sprintf("%d/%d", k.LaneUsed, k.LaneLimit), kindUse(k), k.Binds}
				})
				if err == nil && !use.Complete {
					fmt.Fprintln(c.ErrOrStderr(), "there are too many keys to examine all: those with few jobs may be missing; name one with --key")
				}
				return err
			})
		},
	}
	c.Flags().StringVar(&lane, "lane", "", "only jobs of this lane")
	c.Flags().StringVar(&kind, "kind", "", "only jobs of this kind")
	c.Flags().StringVar(&key, "key", "", "only jobs of this key")
	return c
}

// waitingText formats the number of waiting jobs, which are counted up to a maximum.
func waitingText(k job.KeyUse) string {
	if k.Waiting >= job.MaxKeyWaiting {
		return strconv.Itoa(job.MaxKeyWaiting) + "+"
	}
	return strconv.Itoa(k.Waiting)
}

// kindUse formats the number of the key's jobs of the kind, if the kind has a limit.
func kindUse(k job.KeyUse) string {
	if k.KindLimit == nil {
		return ""
	}
	return fmt.Sprintf("%d/%d", k.KindUsed, *k.KindLimit)
}
