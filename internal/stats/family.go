package stats

// A Family is metrics of one name that a model has of its own.
type Family struct {
	Name, Help string
	Kind       FamilyKind
	Metrics    []Metric
}

// A FamilyKind says how the numbers of a family are to be read.
type FamilyKind uint8

// The kinds, in Triton's order.
const (
	Counter FamilyKind = iota
	Gauge
	Histogram
)

// A Metric is one number of a family, or one histogram.
type Metric struct {
	Labels map[string]string
	Value  float64 // of a counter or a gauge; of a histogram the sum

	Bounds []float64 // of a histogram's buckets, from the lowest on
	Counts []uint64  // for each bound, how many were no larger, and at the end how many there were
}
