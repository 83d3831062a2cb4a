package stats

// A Family is a group of a model's custom metrics with the same name.
type Family struct {
	Name, Help string
	Kind       FamilyKind
	Metrics    []Metric
}

// A FamilyKind is the type of the metrics in a family.
type FamilyKind uint8

// The kinds, in Triton's order.
const (
	Counter FamilyKind = iota
	Gauge
	Histogram
)

// A Metric is one metric of a family.
type Metric struct {
	Labels map[string]string
	Value  float64 // of a counter or a gauge; the sum of a histogram

	Bounds []float64 // upper bounds of a histogram's buckets, ascending
	Counts []uint64  // cumulative count for each bound, then the total
}
