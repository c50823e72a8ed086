package job

import "context"

// Origin describes the source of a command for the audit log. All fields are optional.
type Origin struct {
	Source    string // cli, dashboard or a client address; empty: the program itself, recorded as "library"
	RequestID string // the id of the request, which logs have too
	Reason    string // the reason that the operator entered
}

type originKey struct{}

// WithOrigin returns a context whose commands are recorded in the audit log with o.
func WithOrigin(ctx context.Context, o Origin) context.Context {
	return context.WithValue(ctx, originKey{}, o)
}

// OriginOf returns the Origin that [WithOrigin] put into ctx, or that of the program itself.
func OriginOf(ctx context.Context) Origin {
	o, _ := ctx.Value(originKey{}).(Origin)
	if o.Source == "" {
		o.Source = "library"
	}
	return o
}
