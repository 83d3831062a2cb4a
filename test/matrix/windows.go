package matrix

import (
	"math"
	"time"

	"github.com/shoal-serving/shoal/internal/batching"
	"github.com/shoal-serving/shoal/internal/simulate"
)

// A Window is the requests that arrived within ten seconds. Six consecutive ones are a
// minute.
type Window struct {
	Requests int     `json:"n"`
	Sum      float64 `json:"ms"` // sum of their latencies, in milliseconds
}

const (
	windowLength = 10 * time.Second
	minute       = int(time.Minute / windowLength)
)

// windows runs a cell for the given time. It includes the beginning, in which the policy
// still learns.
func (c *Cell) windows(p batching.Policy, maxRows, instances int, length time.Duration) ([]Window, error) {
	all := make([]Window, length/windowLength)
	r := run{duration: length, seed: 1}
	s := c.scenario(r)
	_, err := s.Measure(c.setting(p, maxRows, instances, r), func(a simulate.Answer) {
		if i := int(a.Arrived / windowLength); i < len(all) {
			all[i].Requests++
			all[i].Sum += float64(a.At-a.Arrived) / float64(ms)
		}
	})
	return all, err
}

// worstMinute returns the highest mean latency of any minute, relative to theirs in the
// same minute.
func worstMinute(ours, theirs []Window) float64 {
	worst := 0.0
	for from := 0; from+minute <= min(len(ours), len(theirs)); from++ {
		worst = max(worst, meanOf(ours[from:from+minute])/meanOf(theirs[from:from+minute]))
	}
	return worst
}

func meanOf(all []Window) float64 {
	n, sum := 0, 0.0
	for _, w := range all {
		n += w.Requests
		sum += w.Sum
	}
	if n == 0 {
		return math.NaN()
	}
	return sum / float64(n)
}
