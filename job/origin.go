package job

import "context"

// Origin describes where a command came from, for the audit log. All fields are optional.
type Origin struct {
	Source    string // cli, dashboard or a client address; empty means the program itself, recorded as "library"
	RequestID string // the request ID, which also appears in logs
	Reason    string // the reason that the operator entered
}

type originKey struct{}

// WithOrigin returns a context that attributes commands to o in the audit log.
func WithOrigin(ctx context.Context, o Origin) context.Context {
	return context.WithValue(ctx, originKey{}, o)
}

// OriginOf returns the Origin that [WithOrigin] stored in ctx. Without one, the source is "library".
func OriginOf(ctx context.Context) Origin {
	o, _ := ctx.Value(originKey{}).(Origin)
	if o.Source == "" {
		o.Source = "library"
	}
	return o
}
