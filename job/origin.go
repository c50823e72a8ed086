package job

import "context"

// Origin is who asks for a command, from where and why, as far as the audit is concerned. All fields are optional.
type Origin struct {
	Source    string // cli, dashboard, or the address a request came from; empty: the program itself, "library"
	RequestID string // of the request, to find it in logs
	Reason    string // the operator's own words
}

type originKey struct{}

// WithOrigin returns a context whose commands are written into the audit with o.
func WithOrigin(ctx context.Context, o Origin) context.Context {
	return context.WithValue(ctx, originKey{}, o)
}

// OriginOf returns what [WithOrigin] put into ctx; without it, the program itself.
func OriginOf(ctx context.Context) Origin {
	o, _ := ctx.Value(originKey{}).(Origin)
	if o.Source == "" {
		o.Source = "library"
	}
	return o
}
