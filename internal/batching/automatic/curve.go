package automatic

import (
	"math"
	"slices"

	"github.com/shoal-serving/shoal/internal/batching"
)

// maxCells is the largest size that has a cell of its own. Larger batches are not
// formed: no model gains from them what the longer wait costs.
const maxCells = 1024

// How cells forget, and how much of a calibrated size is never forgotten. Without
// that a closed loop that only ever shows one size would bend the line through the
// others, and then justify itself by it.
const (
	cellDecay           = 0.98915 // of a cell's weight with each batch of its size: half of it is from the last 64
	maxCalibratedWeight = 10      // the most that a calibrated size weighs, in batches
	minSeenWeight       = 2       // batches from which on a size counts as seen
	minSamples          = 4       // batches from which on a size is known by itself
	minBentSamples      = 10      // batches from which on it tells that the curve is no line: one that was slow by chance weighs little by then
	maxLineError        = 0.08    // sizes decide by the line if no cell is further from it, relative to it
	outlierFactor       = 1.5     // times as long as expected; what is longer counts as that long
	minTail             = 0.001   // that the tail is beyond what is expected, so that it can grow again
	initialTail         = 0.1     // that it is while nobody knows
	maxGrowth           = 4       // times the largest size seen; a batch is no larger while sizes are guessed
)

var tailQuantile = batching.Quantile{P: 0.95, Step: 0.1, Min: minTail, Max: 10} // of what batches take longer than expected

// A curve is how long batches take alone, by rows. Each size has a cell with what
// was measured, and a line goes through all of them.
type curve struct {
	cells      []cell // by rows; the first is not used
	fixed      float64
	perRow     float64
	nonlinear  bool    // some cell is further from the line than noise explains
	solo       int     // batches that ran alone and were measured
	largest    int     // size that was measured
	sinceBuild int     // batches since the tables were made
	tail       float64 // by which part of what is expected 19 of 20 batches take longer at most; 0 if that is not known
	rescaled   bool    // since it was calibrated
	pools      []pool
}

// A pool is sizes that are taken to be equally fast, since a larger one seemed to be
// faster than a smaller one.
type pool struct {
	takes, weight float64
	sizes         int
}

type cell struct {
	weight, mean                 float64 // of live batches
	calibrated, calibratedWeight float64 // what calibration said, and how much that weighs
	takes                        float64 // the table: what is expected
}

func newCurve(rows int) curve {
	return curve{cells: make([]cell, min(rows, maxCells)+1), pools: make([]pool, 0, min(rows, maxCells))}
}

func (c *curve) max() int { return len(c.cells) - 1 }

// known reports whether anything was measured.
func (c *curve) known() bool { return c.largest > 0 }

// at returns how long a batch of so many rows takes alone, in nanoseconds; 0 if
// nothing is known.
func (c *curve) expected(rows int) float64 {
	switch {
	case rows <= 0:
		return 0
	case rows < len(c.cells):
		return c.cells[rows].takes
	}
	last := c.max()
	return c.cells[last].takes * float64(rows) / float64(last)
}

// slowAt returns what 19 of 20 batches of so many rows keep to. That is measured of
// all sizes together: of one alone there are too few to tell, and one that seemed
// too slow for a service level would never run again to prove otherwise.
func (c *curve) p95(rows int) float64 { return c.expected(rows) * (1 + c.tail) }

// smooth returns how long a batch takes for a choice between sizes: by the line if
// the model is close to it, since a noisy table would pick sizes by its noise.
func (c *curve) smooth(rows int) float64 {
	if c.nonlinear {
		return c.expected(rows)
	}
	return c.fixed + c.perRow*float64(rows)
}

// pin takes over what was calibrated. It stays for good.
func (c *curve) calibrate(sizes []batching.Timing) {
	c.rescaled = c.rescaled && len(sizes) == 0
	tail, known := 0.0, 0.0
	for _, s := range sizes {
		if s.Rows < 1 || s.Rows > c.max() || s.Took <= 0 {
			continue
		}
		cell := &c.cells[s.Rows]
		cell.calibrated, cell.calibratedWeight = float64(s.Took), float64(max(1, min(s.Runs, maxCalibratedWeight)))
		if s.Slow >= s.Took {
			tail += min(outlierFactor, float64(s.Slow)/float64(s.Took)) - 1
			known++
		}
		c.largest = max(c.largest, s.Rows)
		c.solo += max(1, s.Runs)
	}
	if known > 0 {
		c.tail = max(minTail, tail/known)
	}
	c.build()
}

// needs reports whether little is known of a size.
func (c *curve) needsSamples(rows int) bool {
	return rows <= c.max() && c.cells[rows].weight+c.cells[rows].calibratedWeight < minSamples
}

// unseen reports whether nothing was measured near a size.
func (c *curve) unseen(rows int) bool {
	for _, cell := range c.neighbors(rows) {
		if cell.weight+cell.calibratedWeight >= minSeenWeight {
			return false
		}
	}
	return true
}

// calibrated reports whether a size near this one was calibrated, and the speed has not
// changed since.
func (c *curve) calibrated(rows int) bool {
	return !c.rescaled && slices.ContainsFunc(c.neighbors(rows), func(cell cell) bool { return cell.calibratedWeight >= minSamples })
}

// forget strikes out what is known near a size, since it has turned out to be wrong.
func (c *curve) forget(rows int) {
	near := c.neighbors(rows)
	for i := range near {
		near[i] = cell{takes: near[i].takes}
	}
}

// near returns the cells of a size, and of those that are within a quarter of it.
func (c *curve) neighbors(rows int) []cell {
	last := min(rows+rows/4, c.max())
	return c.cells[min(rows-rows/4, last) : last+1]
}

// measured takes in a batch that ran alone.
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
	c.solo++
	c.sinceBuild++
	first := rows > c.largest || cell.weight >= minSamples && cell.weight < minSamples+1
	c.largest = max(c.largest, rows)
	if first || c.solo < 32 || c.sinceBuild >= 16 {
		c.build()
	}
}

// off reports whether a size that is so far from the line tells that there is none.
// One slow batch may be chance.
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

// value is what the cell says of its size, and how much that weighs.
func (cell *cell) estimate() (mean, weight float64) {
	weight = cell.weight + cell.calibratedWeight
	if weight == 0 {
		return 0, 0
	}
	return (cell.weight*cell.mean + cell.calibratedWeight*cell.calibrated) / weight, weight
}

// build makes the tables: the line, and for each size its own cell where it has
// enough, or else the line with what the neighbours differ from it. Nothing is
// faster for being larger: where it seems so, sizes share their mean, by what each of
// them weighs, so that one that was seen seldom does not overrule the others.
func (c *curve) build() {
	c.sinceBuild = 0
	c.fitLine()
	c.nonlinear = false
	c.pools = c.pools[:0]
	var near window
	for rows := 1; rows <= c.max(); rows++ {
		line := c.fixed + c.perRow*float64(rows)
		takes := line
		mean, weight := c.cells[rows].estimate()
		if weight >= minSamples {
			takes += weight / (weight + 1) * (mean - line)
			c.nonlinear = c.nonlinear || c.cells[rows].offLine(mean-line, line)
		} else if w, off := near.deviation(c, rows); w > 0 {
			takes += w / (w + 3) * off
		}
		last := pool{takes, max(1, weight), 1}
		for n := len(c.pools); n > 0 && c.pools[n-1].takes > last.takes; n-- {
			before := c.pools[n-1]
			weight := before.weight + last.weight
			last = pool{(before.weight*before.takes + last.weight*last.takes) / weight, weight, before.sizes + last.sizes}
			c.pools = c.pools[:n-1]
		}
		c.pools = append(c.pools, last)
	}
	rows := 1
	for _, p := range c.pools {
		for range p.sizes {
			c.cells[rows].takes = p.takes
			rows++
		}
	}
}

// fit draws the line. Each size weighs by how often it was seen, up to a bound so
// that the usual one does not decide alone, and relative to its own length.
func (c *curve) fitLine() {
	const most = 10
	var sw, sx, sy, sxx, sxy float64
	for rows := 1; rows <= c.max(); rows++ {
		y, w := c.cells[rows].estimate()
		if w == 0 {
			continue
		}
		x := float64(rows)
		w = min(w, most) / (y * y)
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

// rescale takes in that the model has become slower or faster by a factor. What was
// calibrated keeps its weight, since the curve has likely kept its form, but is a guess.
func (c *curve) rescale(by float64) {
	for i := range c.cells {
		c.cells[i].mean *= by
		c.cells[i].calibrated *= by
		c.cells[i].weight = min(c.cells[i].weight, 1)
	}
	c.rescaled = true
	c.build()
}

// A window sums up how far the cells around a size are from the line: those
// within an eighth of it. It only moves forward, so that all of them together cost
// no more than a walk along the cells.
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
	w.off += sign * weight * (mean - c.fixed - c.perRow*float64(rows))
}
