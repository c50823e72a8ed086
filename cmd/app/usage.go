package app

import (
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// plainUsage replaces the messages of cobra and pflag about invalid arguments and flag values, for c and its subcommands.
func plainUsage(c *cobra.Command) {
	if check := c.Args; check != nil {
		c.SuggestionsMinimumDistance = 2
		c.Args = func(c *cobra.Command, args []string) error {
			if check(c, args) == nil {
				return nil
			}
			if c.HasSubCommands() && check(c, nil) == nil {
				return unknownCommand(c, args[0])
			}
			usage := c.CommandPath() + strings.TrimPrefix(c.Use, c.Name())
			for more := args; len(more) < len(args)+3; {
				if more = append(more, ""); check(c, more) == nil {
					return fmt.Errorf("missing argument: %s", usage)
				}
			}
			return fmt.Errorf("too many arguments: %s", usage)
		}
	}
	for _, below := range c.Commands() {
		plainUsage(below)
	}
}

// unknownCommand returns the error for a command name that does not exist. The error lists similar names.
func unknownCommand(c *cobra.Command, name string) error {
	like := ""
	if names := c.SuggestionsFor(name); len(names) > 0 {
		like = " (did you mean " + strings.Join(names, " or ") + "?)"
	}
	return fmt.Errorf("unknown command %q for %s%s", name, c.CommandPath(), like)
}

// wants describes the expected flag value for each flag type.
var wants = map[string]string{"int": "a whole number", "int64": "a whole number", "duration": "a duration such as 90s", "bool": "true or false"}

// flagError returns the message about an invalid flag value without pflag's wording.
func flagError(_ *cobra.Command, err error) error {
	if wrong, ok := errors.AsType[*pflag.InvalidValueError](err); ok {
		if want := wants[wrong.GetFlag().Value.Type()]; want != "" {
			return fmt.Errorf("--%s %q: want %s", wrong.GetFlag().Name, wrong.GetValue(), want)
		}
	}
	return err
}
