// Package envvar is the only place that defines Trapeze's environment variables, with their names, types and defaults. It reads the
// variables in three parts, whose values are validated by the packages that use them: runner/env, api/env and internal/cli.
package envvar

import (
	"errors"
	"fmt"
	"os"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/kelseyhightower/envconfig"

	"github.com/trapeze-run/trapeze/internal/failpoint"
)

// Read returns one part of the environment: a [Runner], an [API] or a [Program]. An empty variable counts as unset. Variables whose values
// do not have the right type keep their defaults, and Read returns an error for each of them, joined.
func Read[Part Runner | API | Program]() (Part, error) {
	var errs []error
	every := reflect.ValueOf(defaults())
	part := every.FieldByName(reflect.TypeFor[Part]().Name()).Interface().(Part)
	fields := reflect.ValueOf(&part).Elem()
	for i := range fields.NumField() {
		// Fields are read one at a time, because envconfig stops at the first error.
		field := fields.Type().Field(i)
		name := field.Tag.Get("envconfig")
		if !IsSet(name) {
			continue
		}
		one := reflect.New(reflect.StructOf([]reflect.StructField{{Name: field.Name, Type: field.Type, Tag: field.Tag}}))
		one.Elem().Field(0).Set(fields.Field(i))
		if err := envconfig.Process("", one.Interface()); err != nil {
			errs = append(errs, fmt.Errorf("%s=%q: want %s", name, os.Getenv(name), wanted(field.Type)))
			continue
		}
		fields.Field(i).Set(one.Elem().Field(0))
		if list, ok := fields.Field(i).Interface().([]string); ok {
			for i := range list {
				list[i] = strings.TrimSpace(list[i])
			}
		}
	}
	return part, errors.Join(errs...)
}

// IsSet reports whether a variable has a value. Templates of charts and compose files set variables without a value to the empty string.
func IsSet(name string) bool { return strings.TrimSpace(os.Getenv(name)) != "" }

func wanted(t reflect.Type) string {
	switch {
	case t == reflect.TypeFor[time.Duration]():
		return "a duration such as 1500ms, 10s or 48h"
	case t.Kind() == reflect.Bool:
		return "true or false"
	case t.Kind() == reflect.Int:
		return "a whole number"
	}
	return "a different type of value"
}

// Variable describes an environment variable.
type Variable struct {
	Name    string
	Part    string // name of the type that contains the variable
	Default any
}

// Variables returns all variables.
func Variables() (list []Variable) {
	every := reflect.ValueOf(defaults())
	for i := range every.NumField() {
		for field, value := range every.Field(i).Fields() {
			list = append(list, Variable{field.Tag.Get("envconfig"), every.Type().Field(i).Name, value.Interface()})
		}
	}
	return list
}

// Kubernetes sets these variables in each pod for every service of the namespace whose name starts with "trapeze", unless the pod's
// enableServiceLinks is false. The variable that ends with _PORT is recognized by its value, because TRAPEZE_PORT=8080 is a mistake.
var (
	serviceLink     = regexp.MustCompile(`^TRAPEZE(_[A-Z0-9_]+)?_(SERVICE_HOST|SERVICE_PORT(_[A-Z0-9_]+)?|PORT_[0-9]+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)$`)
	servicePort     = regexp.MustCompile(`^TRAPEZE(_[A-Z0-9_]+)?_PORT$`)
	servicePortLink = regexp.MustCompile(`^(tcp|udp|sctp)://`)
)

// Unknown returns an error for each unknown variable whose name starts with TRAPEZE_, except for those that Kubernetes sets. Without this
// check, a misspelled variable would be silently ignored.
func Unknown() error {
	var errs []error
	known := map[string]bool{}
	for _, variable := range Variables() {
		known[variable.Name] = true
	}
	for _, assignment := range slices.Sorted(slices.Values(os.Environ())) {
		name, value, _ := strings.Cut(assignment, "=")
		switch {
		case !strings.HasPrefix(name, "TRAPEZE_"), known[name]:
		case serviceLink.MatchString(name), servicePort.MatchString(name) && servicePortLink.MatchString(value):
		case name == "TRAPEZE_FAILPOINTS" && (failpoint.Enabled || value == ""):
		case name == "TRAPEZE_FAILPOINTS":
			errs = append(errs, errors.New("TRAPEZE_FAILPOINTS: this binary was built without the tag failpoints"))
		default:
			errs = append(errs, fmt.Errorf("%s: unknown variable", name))
		}
	}
	return errors.Join(errs...)
}

// Checks collects validation errors.
type Checks []error

// That adds an error if ok is false.
func (c *Checks) That(ok bool, format string, args ...any) {
	if !ok {
		*c = append(*c, fmt.Errorf(format, args...))
	}
}

// OneOf adds an error unless value is one of values.
func (c *Checks) OneOf(name, value string, values ...string) {
	c.That(slices.Contains(values, value), "%s=%q: want one of %s", name, value, strings.Join(values, ", "))
}
