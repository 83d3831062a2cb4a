package batching

// A Quantile estimates a quantile of a stream of values without storing them. Each value
// above the estimate moves it up, each other value moves it down, and the moves cancel
// out when the share P of all values is not above it.
type Quantile struct {
	P       float64 // such as 0.95
	Step    float64 // largest relative move of the estimate
	MinStep float64 // minimum move, so that the estimate can leave zero
	Min     float64 // of the estimate
	Max     float64 // of the estimate
}

// Next returns the estimate after a value that was above it, or was not.
func (q *Quantile) Next(estimate float64, above bool) float64 {
	step := max(q.Step*estimate, q.MinStep)
	if above {
		estimate += q.P * step
	} else {
		estimate -= (1 - q.P) * step
	}
	return max(q.Min, min(estimate, q.Max))
}
