package automatic

import (
	"math"

	"github.com/shoal-serving/shoal/internal/batching"
)

// maxCells is the largest size with a cell of its own, and the maximum batch size: no
// model gains enough from larger batches to make up for the longer wait.
const maxCells = 1024

// How fast cells forget, and how much of a calibrated size is never forgotten. If all
// were forgotten, a closed loop that only ever runs one size would distort the line for
// all others, and that line would then justify the one size.
const (
	cellDecay           = 0.98915 // factor of a cell's weight with each batch of its size: the last 64 batches make up half of it
	maxCalibratedWeight = 10      // maximum weight of a calibrated size, in batches
	minSeenWeight       = 2       // batches after which a size counts as seen
	guessWeight         = 0.25    // batches that a guess counts as: after a change of speed, one batch says more of its size
	minSamples          = 4       // batches after which a size has an estimate of its own
	minBentSamples      = 10      // batches after which a size can show that the curve is not a line: by then, a single slow batch weighs little
	maxLineError        = 0.08    // maximum relative distance of a cell from the line; beyond it the curve is nonlinear
	outlierFactor       = 1.5     // longer times count as this multiple of the expected time
	minTail             = 0.001   // minimum of curve.tail, so that it can grow again
	initialTail         = 0.1     // curve.tail before the first measurement
	maxGrowth           = 4       // a batch is at most this many times as large as the largest measured size
)

var tailQuantile = batching.Quantile{P: 0.95, Step: 0.1, Min: minTail, Max: 10} // of curve.tail

// A curve estimates the solo time of batches by their number of rows: how long they take
// while no other batch runs. Each size has a cell with its measurements, and a line is
// fitted through all cells.
type curve struct {
	cells       []cell // by rows; cells[0] is not used
	fixed       float64
	perRow      float64
	nonlinear   bool    // some cell is further from the line than noise explains, so sizes are compared by their cells
	soloBatches int     // number of measured batches that ran without parallel ones
	largest     int     // largest measured size
	sinceBuild  int     // batches since the last build
	tail        float64 // relative distance of the p95 from the expected time; 0 if unknown
	pools       []pool
}

// A pool is a range of adjacent sizes that share one estimate, because a larger one
// seemed to be faster than a smaller one.
type pool struct {
	expected, weight float64
	sizes            int
}

type cell struct {
	weight, mean                 float64 // of batches under traffic
	calibrated, calibratedWeight float64 // the calibrated time, and its weight
	expected                     float64 // the expected time, set by build
}

func newCurve(rows int) curve {
	return curve{cells: make([]cell, min(rows, maxCells)+1), pools: make([]pool, 0, min(rows, maxCells))}
}

func (c *curve) max() int { return len(c.cells) - 1 }

// known reports whether any batch was measured.
func (c *curve) known() bool { return c.largest > 0 }

// expected returns the expected solo time of a batch in nanoseconds; 0 if nothing is known.
func (c *curve) expected(rows int) float64 {
	switch {
	case rows <= 0:
		return 0
	case rows < len(c.cells):
		return c.cells[rows].expected
	}
	last := c.max()
	return c.cells[last].expected * float64(rows) / float64(last)
}

// p95 returns the p95 of the solo time of a batch, in nanoseconds. The
// distance from the mean is measured over all sizes together: a single size has too few
// samples, and one that seemed too slow for a latency objective would never run again to
// prove otherwise.
func (c *curve) p95(rows int) float64 { return c.expected(rows) * (1 + c.tail) }

// smooth returns the estimate that is used to compare sizes: the line if the model is
// close to it, because the cells would favor sizes by their noise.
func (c *curve) smooth(rows int) float64 {
	if c.nonlinear {
		return c.expected(rows)
	}
	return c.line(rows)
}

func (c *curve) line(rows int) float64 { return c.fixed + c.perRow*float64(rows) }

// between returns smooth of an average size.
func (c *curve) between(rows float64) float64 {
	below := max(1, min(int(rows), c.max()))
	above := min(below+1, c.max())
	return c.smooth(below) + (rows-float64(below))*(c.smooth(above)-c.smooth(below))
}

// calibrate sets the calibrated times, which are never forgotten.
func (c *curve) calibrate(sizes []batching.Timing) {
	tail, known := 0.0, 0.0
	for _, s := range sizes {
		if s.Rows < 1 || s.Rows > c.max() || s.Median <= 0 {
			continue
		}
		cell := &c.cells[s.Rows]
		cell.calibrated, cell.calibratedWeight = float64(s.Median), float64(max(minSamples, min(s.Runs, maxCalibratedWeight)))
		if s.P95 >= s.Median {
			tail += min(outlierFactor, float64(s.P95)/float64(s.Median)) - 1
			known++
		}
		c.largest = max(c.largest, s.Rows)
		c.soloBatches += max(1, s.Runs)
	}
	if known > 0 {
		c.tail = max(minTail, tail/known)
	}
	c.build()
}

// needsSamples reports whether a size has too few samples for an estimate of its own.
func (c *curve) needsSamples(rows int) bool {
	return rows <= c.max() && c.cells[rows].weight+c.cells[rows].calibratedWeight < minSamples
}

// uncertain reports whether a size has so few samples, calibrated ones included, that some slow
// batches may be most of them.
func (c *curve) uncertain(rows int) bool {
	return rows <= c.max() && c.cells[rows].weight+c.cells[rows].calibratedWeight < minBentSamples
}

// unseen reports whether no size near the given one was measured.
func (c *curve) unseen(rows int) bool {
	for _, cell := range c.neighbors(rows) {
		if cell.weight+cell.calibratedWeight >= minSeenWeight {
			return false
		}
	}
	return true
}

// contradicts reports whether a batch that took the given time proves a measurement wrong, and not
// only what was inferred for its size from those of others. On a device whose time grows with the
// square of the size, a line through two sizes is above all between them.
func (c *curve) contradicts(rows int, took float64) bool {
	for n := 1; n <= min(rows, c.max()); n++ {
		if mean, _ := c.cells[n].estimate(); took < retestGain*mean {
			return true
		}
	}
	return false
}

// disprove discards what a batch has proven to be wrong: it took less time than smaller
// batches were believed to take. What is known about larger ones is discarded, too: it was
// probably measured in the same slow moment, and the next batches grow to them by steps. The
// rest becomes a guess.
func (c *curve) disprove(rows int, took float64) {
	c.largest = min(c.largest, rows)
	for n := 1; n <= c.max(); n++ {
		if mean, _ := c.cells[n].estimate(); n >= rows || mean > took {
			c.cells[n] = cell{}
		}
	}
	c.doubt()
}

// neighbors returns the cells of all sizes within a quarter of the given one.
func (c *curve) neighbors(rows int) []cell {
	last := min(rows+rows/4, c.max())
	return c.cells[min(rows-rows/4, last) : last+1]
}

// record adds the solo time of a batch, in nanoseconds.
func (c *curve) record(rows int, took float64) {
	if rows < 1 || rows > c.max() || !(took > 0) {
		return
	}
	cell := &c.cells[rows]
	if !c.unseen(rows) {
		if c.tail == 0 {
			c.tail = initialTail
		}
		c.tail = tailQuantile.Next(c.tail, took/c.expected(rows) > 1+c.tail)
		took = min(took, outlierFactor*c.expected(rows))
	}
	cell.weight = cell.weight*cellDecay + 1
	cell.mean += (took - cell.mean) / cell.weight
	c.soloBatches++
	c.sinceBuild++
	first := rows > c.largest || cell.weight >= minSamples && cell.weight < minSamples+1
	c.largest = max(c.largest, rows)
	if first || c.soloBatches < 32 || c.sinceBuild >= 16 {
		c.build()
	}
}

// offLine reports whether a cell shows that the curve is not a line: by is its distance
// from the line. It discounts one slow batch, which may be noise.
func (cell *cell) offLine(by, line float64) bool {
	weight := cell.weight + cell.calibratedWeight
	if weight < minBentSamples && cell.calibratedWeight < minSamples {
		return false
	}
	if by > 0 {
		by -= (outlierFactor - 1) * line * min(1, cell.weight) / weight
	}
	return math.Abs(by) > maxLineError*line
}

// estimate returns the weighted mean of the cell's samples, and their weight.
func (cell *cell) estimate() (mean, weight float64) {
	weight = cell.weight + cell.calibratedWeight
	if weight == 0 {
		return 0, 0
	}
	return (cell.weight*cell.mean + cell.calibratedWeight*cell.calibrated) / weight, weight
}

// build fits the line and recomputes the expected time of each size: from its own cell if
// that has enough samples, or else from the line and the deviation of the sizes below and above
// that have, if the curve bends, or of neighboring ones.
// The result never falls with the size: where the estimates do, adjacent sizes share
// their weighted mean (pool adjacent violators), so that a size with few samples does not
// overrule the others.
func (c *curve) build() {
	c.sinceBuild = 0
	c.fitLine()
	c.nonlinear = c.bends()
	c.pools = c.pools[:0]
	var near window
	var within segment
	for rows := 1; rows <= c.max(); rows++ {
		expected := c.line(rows)
		_, weight := c.cells[rows].estimate()
		if weight >= minSamples {
			expected += c.ownDeviation(rows)
		} else if off, ok := within.deviation(c, rows); ok && c.nonlinear {
			expected += off
		} else if w, off := near.deviation(c, rows); w > 0 {
			expected += w / (w + 3) * off
		}
		last := pool{expected, max(1, weight), 1}
		for n := len(c.pools); n > 0 && c.pools[n-1].expected > last.expected; n-- {
			before := c.pools[n-1]
			weight := before.weight + last.weight
			last = pool{(before.weight*before.expected + last.weight*last.expected) / weight, weight, before.sizes + last.sizes}
			c.pools = c.pools[:n-1]
		}
		c.pools = append(c.pools, last)
	}
	rows := 1
	for _, p := range c.pools {
		for range p.sizes {
			c.cells[rows].expected = p.expected
			rows++
		}
	}
}

// fitLine fits the line by weighted least squares, with relative errors. The weight of a
// size is its number of samples up to a limit, so that the most frequent size does not
// dominate.
func (c *curve) fitLine() {
	const maxWeight = 10
	var sw, sx, sy, sxx, sxy float64
	for rows := 1; rows <= c.max(); rows++ {
		y, w := c.cells[rows].estimate()
		if w == 0 {
			continue
		}
		x := float64(rows)
		w = min(w, maxWeight) / (y * y)
		sw, sx, sy, sxx, sxy = sw+w, sx+w*x, sy+w*y, sxx+w*x*x, sxy+w*x*y
	}
	if sw == 0 {
		return
	}
	c.fixed, c.perRow = sy/sw, 0
	if den := sw*sxx - sx*sx; den > 1e-9*sw*sxx {
		c.perRow = (sw*sxy - sx*sy) / den
		c.fixed = (sy - c.perRow*sx) / sw
	}
	switch {
	case c.perRow < 0:
		c.fixed, c.perRow = sy/sw, 0
	case c.fixed < 0:
		c.fixed, c.perRow = 0, sxy/sxx
	}
}

// rescale multiplies all times by a factor after a change of speed. What was measured is a
// guess from now on, calibrated times included: the curve has probably kept its form, but
// the factor was measured at the sizes that ran.
func (c *curve) rescale(by float64) {
	for i := range c.cells {
		c.cells[i].mean *= by
		c.cells[i].calibrated *= by
	}
	c.doubt()
}

// doubt makes a guess of all that was measured.
func (c *curve) doubt() {
	for i := range c.cells {
		cell := &c.cells[i]
		mean, weight := cell.estimate()
		cell.mean, cell.weight = mean, min(weight, guessWeight)
		cell.calibrated, cell.calibratedWeight = 0, 0
	}
	c.build()
}

// bends reports whether a size shows that the curve is not a line.
func (c *curve) bends() bool {
	for rows := 1; rows <= c.max(); rows++ {
		line := c.line(rows)
		if mean, _ := c.cells[rows].estimate(); c.cells[rows].offLine(mean-line, line) {
			return true
		}
	}
	return false
}

// ownDeviation returns how far a size is from the line by its own samples.
func (c *curve) ownDeviation(rows int) float64 {
	mean, weight := c.cells[rows].estimate()
	return weight / (weight + 1) * (mean - c.line(rows))
}

// A segment is the part of the curve between two adjacent sizes that have enough samples. It only
// moves forward, like a window.
type segment struct {
	from, to       int // to is beyond the last size if there is no such size above
	fromOff, toOff float64
}

// deviation returns how far a size is from the line if the curve is straight within the segment.
func (s *segment) deviation(c *curve, rows int) (off float64, ok bool) {
	for rows > s.to && s.to <= c.max() {
		s.from, s.fromOff = s.to, s.toOff
		for s.to++; s.to <= c.max() && c.needsSamples(s.to); s.to++ {
		}
		if s.to <= c.max() {
			s.toOff = c.ownDeviation(s.to)
		}
	}
	if s.from == 0 || s.to > c.max() {
		return 0, false
	}
	return s.fromOff + (s.toOff-s.fromOff)*float64(rows-s.from)/float64(s.to-s.from), true
}

// A window computes the mean deviation from the line of the cells within an eighth of a
// size. It only moves forward, so that a pass over all sizes takes linear time.
type window struct {
	from, to    int // cells from..to-1 are summed
	weight, off float64
}

func (w *window) deviation(c *curve, rows int) (weight, off float64) {
	if w.to == 0 {
		w.from, w.to = 1, 1
	}
	reach := rows / 8
	for ; w.to <= min(rows+reach, c.max()); w.to++ {
		w.add(c, w.to, 1)
	}
	for ; w.from < rows-reach; w.from++ {
		w.add(c, w.from, -1)
	}
	if w.weight < 1e-9 {
		return 0, 0
	}
	return w.weight, w.off / w.weight
}

func (w *window) add(c *curve, rows int, sign float64) {
	mean, weight := c.cells[rows].estimate()
	w.weight += sign * weight
	w.off += sign * weight * (mean - c.line(rows))
}
