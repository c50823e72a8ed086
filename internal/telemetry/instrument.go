package telemetry

import (
	"math"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// Type is a metric's type.
type Type int

// The metric types.
const (
	CounterType Type = iota
	GaugeType
	HistogramType
)

// Metric describes all series with a given name.
type Metric struct {
	Name, Help string
	Type       Type
	Labels     []string // label names
}

// Series is the current state of one of a metric's series.
type Series struct {
	Labels []string           // label values, in the order of the metric's label names
	Since  time.Time          // when the series was created
	Value  float64            // value of a counter or gauge, or the sum of all observations in a histogram
	Count  uint64             // number of observations in a histogram
	AtMost map[float64]uint64 // number of observations in a histogram, up to each upper bound
}

// Set is a list of metrics. All metrics must be created before the set is read.
type Set struct{ metrics []readable }

type readable struct {
	Metric
	each func(func(Series))
}

// Metrics returns a description of every metric.
func (s *Set) Metrics() []Metric {
	all := make([]Metric, len(s.metrics))
	for i, m := range s.metrics {
		all[i] = m.Metric
	}
	return all
}

// Each calls f for each series of each metric, with the metric's index in [Set.Metrics].
func (s *Set) Each(f func(at int, series Series)) {
	for i, m := range s.metrics {
		m.each(func(series Series) { f(i, series) })
	}
}

// Counter adds a counter to the set.
func (s *Set) Counter(name, help string) *Counter { return s.Counters(name, help).WithLabelValues() }

// Gauge adds a gauge to the set.
func (s *Set) Gauge(name, help string) *Gauge { return s.Gauges(name, help).WithLabelValues() }

// Histogram adds a histogram to the set. The bounds are the upper bounds of its buckets, lowest first.
func (s *Set) Histogram(name, help string, bounds []float64) *Histogram {
	return s.Histograms(name, help, bounds).WithLabelValues()
}

// Counters adds counters with labels to the set.
func (s *Set) Counters(name, help string, labels ...string) *Vec[*Counter] {
	return add(s, Metric{name, help, CounterType, labels}, func() *Counter { return &Counter{} })
}

// Gauges adds gauges with labels to the set.
func (s *Set) Gauges(name, help string, labels ...string) *Vec[*Gauge] {
	return add(s, Metric{name, help, GaugeType, labels}, func() *Gauge { return &Gauge{} })
}

// Histograms adds histograms with labels to the set.
func (s *Set) Histograms(name, help string, bounds []float64, labels ...string) *Vec[*Histogram] {
	return add(s, Metric{name, help, HistogramType, labels}, func() *Histogram {
		return &Histogram{bounds: bounds, counts: make([]uint64, len(bounds)+1)}
	})
}

func add[T instrument](s *Set, m Metric, make func() T) *Vec[T] {
	v := &Vec[T]{labels: len(m.Labels), make: make, series: map[string]series[T]{}}
	s.metrics = append(s.metrics, readable{m, v.each})
	return v
}

type instrument interface{ read(*Series) }

// Vec is a metric with labels. It has an instrument for each combination of label values.
type Vec[T instrument] struct {
	labels int
	make   func() T

	mu     sync.RWMutex
	series map[string]series[T] // keyed by the joined label values
}

type series[T instrument] struct {
	labels []string
	since  time.Time
	it     T
}

// WithLabelValues returns the instrument for the given label values, which must be in the same order as the labels. It creates the
// instrument on the first call, and panics if the number of values differs from the number of labels.
func (v *Vec[T]) WithLabelValues(values ...string) T {
	if len(values) != v.labels {
		panic("instrument: the number of values differs from the number of labels")
	}
	key := strings.Join(values, "\xff") // a byte that does not occur in valid UTF-8
	v.mu.RLock()
	one, found := v.series[key]
	v.mu.RUnlock()
	if found {
		return one.it
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	if one, found = v.series[key]; !found {
		one = series[T]{labels: slices.Clone(values), since: time.Now(), it: v.make()}
		v.series[key] = one
	}
	return one.it
}

// Reset removes all series.
func (v *Vec[T]) Reset() {
	v.mu.Lock()
	defer v.mu.Unlock()
	clear(v.series)
}

func (v *Vec[T]) Len() int {
	v.mu.RLock()
	defer v.mu.RUnlock()
	return len(v.series)
}

func (v *Vec[T]) each(f func(Series)) {
	v.mu.RLock()
	defer v.mu.RUnlock()
	for _, series := range v.series {
		s := Series{Labels: series.labels, Since: series.since}
		series.it.read(&s)
		f(s)
	}
}

// number is a float64 that is safe for concurrent use.
type number struct{ bits atomic.Uint64 }

func (n *number) add(d float64) {
	for {
		old := n.bits.Load()
		if n.bits.CompareAndSwap(old, math.Float64bits(math.Float64frombits(old)+d)) {
			return
		}
	}
}

func (n *number) read(s *Series) { s.Value = math.Float64frombits(n.bits.Load()) }

// Counter is a metric that only increases.
type Counter struct{ number }

// Inc adds 1.
func (c *Counter) Inc() { c.add(1) }

// Add adds d, which must not be negative.
func (c *Counter) Add(d float64) { c.add(d) }

// Gauge is a metric that can go up and down.
type Gauge struct{ number }

// Inc adds 1.
func (g *Gauge) Inc() { g.add(1) }

// Dec subtracts 1.
func (g *Gauge) Dec() { g.add(-1) }

// Set sets the value.
func (g *Gauge) Set(value float64) { g.bits.Store(math.Float64bits(value)) }

// Histogram counts observations in buckets.
type Histogram struct {
	bounds []float64

	mu     sync.Mutex
	sum    float64
	counts []uint64 // counts by bucket; the last one is for values above all bounds
}

// Observe records a value.
func (h *Histogram) Observe(value float64) {
	at, _ := slices.BinarySearch(h.bounds, value) // a value equal to a bound belongs to that bound's bucket
	h.mu.Lock()
	defer h.mu.Unlock()
	h.sum += value
	h.counts[at]++
}

func (h *Histogram) read(s *Series) {
	h.mu.Lock()
	defer h.mu.Unlock()
	s.Value, s.AtMost = h.sum, make(map[float64]uint64, len(h.bounds))
	for i, bound := range h.bounds {
		s.Count += h.counts[i]
		s.AtMost[bound] = s.Count
	}
	s.Count += h.counts[len(h.bounds)]
}

// Exponential returns n upper bounds, each of which is factor times the previous one.
func Exponential(first, factor float64, n int) []float64 {
	bounds := make([]float64, n)
	for i := range bounds {
		bounds[i] = first
		first *= factor
	}
	return bounds
}
