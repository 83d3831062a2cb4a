package python

import "time"

// A comeback says when a worker that died is started again. It reads no clock and
// throws no dice: both come as arguments.
//
// One that dies now and then is started at once. One that dies over and over waits
// longer each time, up to half a second if it answers batches in between, because that is
// what a model does that some requests kill, and the others shall be served. One that
// does not even come to that waits up to half a minute: it takes the cores from
// models that work.
type comeback struct {
	deaths int // in a row, with less than calm between them
	barren int // of those, the last ones that had answered nothing
	last   time.Time
}

const (
	calm       = time.Minute
	firstDelay = 100 * time.Millisecond
	maxDelay   = 500 * time.Millisecond
	maxBarren  = 30 * time.Second
	crashLoop  = 5 // deaths in a row without an answer
)

// died takes in a death, and returns how long to wait before the next start. answered
// says whether the worker had answered anything; random is from 0 to 1, so that
// workers that died together do not all come back together.
func (c *comeback) died(now time.Time, answered bool, random float64) time.Duration {
	if now.Sub(c.last) >= calm && answered {
		c.deaths = 0
	}
	c.last = now
	c.deaths++
	c.barren++
	if answered {
		c.barren = 0
	}
	limit := maxDelay
	if c.barren > 1 {
		limit = maxBarren
	}
	if c.deaths == 1 {
		return 0
	}
	delay := limit
	if doublings := c.deaths - 2; doublings < 10 {
		delay = min(limit, firstDelay<<doublings)
	}
	return delay/2 + time.Duration(random*float64(delay/2))
}

// loops reports whether the model dies whenever it is started.
func (c *comeback) loops() bool { return c.barren >= crashLoop }
