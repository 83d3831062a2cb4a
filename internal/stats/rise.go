package stats

import (
	"math"
	"time"
)

// Rose reports whether n requests in a time mean that there are more of them than the rate says:
// half as many again, and five standard deviations of arrivals at random times.
func Rose(rate, n float64, took time.Duration) bool {
	expected := rate * took.Seconds()
	return n-expected > max(expected/2, 5*math.Sqrt(expected+1))
}
