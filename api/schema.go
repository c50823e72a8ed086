package api

import (
	"encoding/json"
	"reflect"
	"strings"
	"time"

	"github.com/trapeze-run/trapeze/job"
)

// Schema is a JSON Schema (2020-12), which OpenAPI 3.1 uses for request and response bodies.
type jsonSchema map[string]any

// Types lists the schemas of types whose JSON form cannot be derived from their fields, in addition to the common types.
type knownTypes map[reflect.Type]jsonSchema

var commonTypes = knownTypes{
	reflect.TypeFor[time.Time]():       {"type": "string", "format": "date-time"},
	reflect.TypeFor[json.RawMessage](): {"description": "any JSON"},
	reflect.TypeFor[job.Seconds]():     {"type": "number", "description": "seconds"},
	reflect.TypeFor[job.State]():       {"type": "string", "enum": job.States()},
	reflect.TypeFor[job.Status]():      {"type": "string", "enum": job.Statuses()},
	reflect.TypeFor[job.Missed]():      {"type": "string", "enum": []job.Missed{job.MissedCoalesce, job.MissedCatchUp, job.MissedSkip}},
	reflect.TypeFor[job.Overlap]():     {"type": "string", "enum": []job.Overlap{job.OverlapQueue, job.OverlapSkip}},
	reflect.TypeFor[job.FireOutcome](): {"type": "string", "enum": []job.FireOutcome{job.FireFired, job.FireDuplicate, job.FireOverlap, job.FireMissed,
		job.FireFailed}},
}

// Of returns the schema of a type's JSON encoding by encoding/json. No member is marked as required.
func (own knownTypes) Of(t reflect.Type) jsonSchema {
	for _, types := range []knownTypes{own, commonTypes} {
		if known, ok := types[t]; ok {
			return known
		}
	}
	switch t.Kind() {
	case reflect.Pointer:
		return orNull(own.Of(t.Elem()))
	case reflect.Struct:
		members := jsonSchema{}
		own.fields(t, members)
		return jsonSchema{"type": "object", "properties": members}
	case reflect.Slice, reflect.Array:
		return jsonSchema{"type": "array", "items": own.Of(t.Elem())}
	case reflect.Map:
		return jsonSchema{"type": "object", "additionalProperties": own.Of(t.Elem())}
	case reflect.String:
		return jsonSchema{"type": "string"}
	case reflect.Bool:
		return jsonSchema{"type": "boolean"}
	case reflect.Float32, reflect.Float64:
		return jsonSchema{"type": "number"}
	case reflect.Interface:
		return jsonSchema{}
	}
	return jsonSchema{"type": "integer"}
}

func (own knownTypes) fields(t reflect.Type, members jsonSchema) {
	for field := range t.Fields() {
		name, options, _ := strings.Cut(field.Tag.Get("json"), ",")
		switch {
		case name == "-" || !field.IsExported() && !field.Anonymous:
			continue
		case field.Anonymous && name == "":
			own.fields(field.Type, members)
			continue
		case name == "":
			name = field.Name
		}
		schema := own.Of(field.Type)
		if options == "string" { // IDs are strings because they may exceed the precision of a double
			schema = jsonSchema{"type": "string", "pattern": "^[0-9]+$"}
			if field.Type.Kind() == reflect.Pointer {
				schema = orNull(schema)
			}
		}
		members[name] = schema
	}
}

// orNull returns a schema that also allows null.
func orNull(schema jsonSchema) jsonSchema {
	switch kind := schema["type"].(type) {
	case string:
		all := jsonSchema{}
		for name, value := range schema {
			all[name] = value
		}
		all["type"] = []string{kind, "null"}
		if values, ok := schema["enum"]; ok {
			return jsonSchema{"anyOf": []jsonSchema{{"type": kind, "enum": values}, {"type": "null"}}}
		}
		return all
	case nil:
		return schema // allows anything, including null
	}
	return jsonSchema{"anyOf": []jsonSchema{schema, {"type": "null"}}}
}
