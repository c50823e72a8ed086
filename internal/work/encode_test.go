package work

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
)

type page struct {
	Text string `json:"text"`
	No   int    `json:"no"`
}

// BenchmarkEncodeArgs encodes and checks arguments given as a struct and as JSON.
func BenchmarkEncodeArgs(b *testing.B) {
	for _, size := range []int{10, 1500, 20_000} {
		text := strings.Repeat("x", size)
		for name, args := range map[string]any{
			"struct": page{Text: text, No: 1},
			"JSON":   json.RawMessage(`{"text":"` + text + `","no":1}`),
		} {
			b.Run(fmt.Sprintf("%s of %d bytes", name, size), func(b *testing.B) {
				b.ReportAllocs()
				b.SetBytes(int64(size))
				for b.Loop() {
					if _, err := EncodeArgs("page", args); err != nil {
						b.Fatal(err)
					}
				}
			})
		}
	}
}
