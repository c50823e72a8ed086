package api

import (
	"encoding/json"
	"reflect"
	"strings"
	"time"

	"github.com/trapeze-run/trapeze/internal/doctor"
	"github.com/trapeze-run/trapeze/job"
)

// schema is a JSON Schema (2020-12), which OpenAPI 3.1 uses for request and response bodies.
type schema map[string]any

// schemaOf lists the types whose JSON form does not follow from their fields.
var schemaOf = map[reflect.Type]schema{
	reflect.TypeFor[time.Time]():       {"type": "string", "format": "date-time"},
	reflect.TypeFor[json.RawMessage](): {"description": "any JSON"},
	reflect.TypeFor[Delay]():           {"type": []string{"number", "string"}, "description": "seconds, or a duration such as 1m30s"},
	reflect.TypeFor[job.Seconds]():     {"type": "number", "description": "seconds"},
	reflect.TypeFor[job.Millis]():      {"type": "number", "description": "milliseconds"},
	reflect.TypeFor[job.State]():       {"type": "string", "enum": job.States()},
	reflect.TypeFor[job.Status](): {"type": "string", "enum": []job.Status{job.PipelineRunning, job.PipelineSucceeded, job.PipelinePartial,
		job.PipelineFailed, job.PipelineCancelled}},
	reflect.TypeFor[job.Missed]():    {"type": "string", "enum": []job.Missed{job.MissedCoalesce, job.MissedCatchUp, job.MissedSkip}},
	reflect.TypeFor[doctor.Health](): {"type": "string", "enum": []doctor.Health{doctor.Healthy, doctor.Warning, doctor.Failing}},
	reflect.TypeFor[job.Overlap]():   {"type": "string", "enum": []job.Overlap{job.OverlapQueue, job.OverlapSkip}},
	reflect.TypeFor[job.FireOutcome](): {"type": "string", "enum": []job.FireOutcome{job.FireFired, job.FireDuplicate, job.FireOverlap, job.FireMissed,
		job.FireFailed}},
}

// describe returns the schema of a type's JSON form, as encoding/json encodes it. No member is marked as required.
func describe(t reflect.Type) schema {
	if known, ok := schemaOf[t]; ok {
		return known
	}
	switch t.Kind() {
	case reflect.Pointer:
		return orNull(describe(t.Elem()))
	case reflect.Struct:
		members := schema{}
		describeFields(t, members)
		return schema{"type": "object", "properties": members}
	case reflect.Slice, reflect.Array:
		return schema{"type": "array", "items": describe(t.Elem())}
	case reflect.Map:
		return schema{"type": "object", "additionalProperties": describe(t.Elem())}
	case reflect.String:
		return schema{"type": "string"}
	case reflect.Bool:
		return schema{"type": "boolean"}
	case reflect.Float32, reflect.Float64:
		return schema{"type": "number"}
	case reflect.Interface:
		return schema{}
	}
	return schema{"type": "integer"}
}

func describeFields(t reflect.Type, members schema) {
	for field := range t.Fields() {
		name, options, _ := strings.Cut(field.Tag.Get("json"), ",")
		switch {
		case name == "-" || !field.IsExported() && !field.Anonymous:
			continue
		case field.Anonymous && name == "":
			describeFields(field.Type, members)
			continue
		case name == "":
			name = field.Name
		}
		one := describe(field.Type)
		if options == "string" { // IDs are strings because they may exceed the precision of a double
			one = schema{"type": "string", "pattern": "^[0-9]+$"}
			if field.Type.Kind() == reflect.Pointer {
				one = orNull(one)
			}
		}
		members[name] = one
	}
}

// orNull returns a schema that also allows null.
func orNull(one schema) schema {
	switch kind := one["type"].(type) {
	case string:
		all := schema{}
		for name, value := range one {
			all[name] = value
		}
		all["type"] = []string{kind, "null"}
		if values, ok := one["enum"]; ok {
			return schema{"anyOf": []schema{{"type": kind, "enum": values}, {"type": "null"}}}
		}
		return all
	case nil:
		return one // allows anything, including null
	}
	return schema{"anyOf": []schema{one, {"type": "null"}}}
}
