package matrix

import (
	"fmt"
	"slices"
	"time"

	"github.com/shoal-serving/shoal/internal/batching"
)

// Static is a setting of dynamic batching, as in config.pbtxt.
type Static struct {
	Delay     time.Duration
	Preferred int // 0 means the largest size
	MaxRows   int
	Instances int
}

func (s Static) String() string {
	text := fmt.Sprintf("delay %v, max %d, instances %d", s.Delay, s.MaxRows, s.Instances)
	if s.Preferred != 0 {
		text = fmt.Sprintf("preferred %d, ", s.Preferred) + text
	}
	return text
}

func (s Static) policy() batching.Policy {
	p := batching.Triton{MaxRows: s.MaxRows, MaxDelay: s.Delay}
	if s.Preferred != 0 {
		p.Preferred = []int{s.Preferred}
	}
	return p
}

// greedy never waits, and takes all waiting requests.
func greedy(instances int) Static { return Static{MaxRows: MaxRows, Instances: instances} }

var delays = []time.Duration{0, 100 * us, 300 * us, 600 * us, 1 * ms, 2 * ms, 5 * ms, 10 * ms}

// grid returns the static settings to try in a cell, without those that always decide the
// same as another.
func (c *Cell) grid() []Static {
	sizes := []int{1, 2, 4, 8, 16, 32, 64}
	preferred := []int{2, 4, 8, 16, 32, 64}
	if n := c.Traffic.clients(); n > 1 && n < MaxRows && !slices.Contains(preferred, n) {
		preferred = append(preferred, n)
	}
	var all []Static
	for _, instances := range []int{1, 2, 4} {
		for _, size := range sizes {
			for _, delay := range delays {
				if size == 1 && delay > 0 {
					continue
				}
				all = append(all, Static{Delay: delay, MaxRows: size, Instances: instances})
				for _, p := range preferred {
					if p < size {
						all = append(all, Static{Delay: delay, Preferred: p, MaxRows: size, Instances: instances})
					}
				}
			}
		}
	}
	return all
}
