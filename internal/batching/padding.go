package batching

// A Padder is a policy that may fill a batch with requests of other shapes, which are then
// padded to the shape of the largest.
type Padder interface {
	Policy

	// Pad decides how many of the items form a batch. The first host items are the decision
	// of Decide; those behind them have other shapes, the most similar first. The result is
	// at least host. If it is more, the batch is closed for the given reason. The core calls
	// it once for each batch that requests of other shapes could join, and may take fewer if
	// one would be late. Pad must not keep its arguments.
	Pad(now Time, items []*Item, host int) (take int, reason Reason)
}

// paddedBatches is the number of batches after a padded one for which predictions assume
// that requests of other shapes will share a batch, too.
const paddedBatches = 16

// mayPad reports whether requests of other lanes may join a batch that takes the given
// number of items from the line. If it leaves some of its own lane behind, it is as large as
// it should be.
func (c *Core) mayPad(line Line, take int) bool {
	return c.padder != nil && c.cfg.OvertakeOtherShapes && c.cfg.MaxRows > 0 && line.lane.items == take && line.First().PadGroup != 0 && c.waiting > take
}

// pad adds items of other lanes to the batch of in, which has those of the lane host, if the
// policy says so. It returns why the batch is closed.
func (c *Core) pad(in *instance, host *lane, reason Reason) Reason {
	own := len(in.batch)
	first := in.batch[0]
	rows := 0
	for _, it := range in.batch {
		rows += it.Rows
	}
	// Each lane adds a request, so that there are at most as many passes as rows.
	for l := c.nearestLane(host, nil, first, c.cfg.MaxRows-rows); l != nil; l = c.nearestLane(host, l, first, c.cfg.MaxRows-rows) {
		for it := l.first(); it != nil && rows+it.Rows <= c.cfg.MaxRows; it = l.after(it) {
			in.batch = append(in.batch, it)
			rows += it.Rows
		}
	}
	if len(in.batch) == own {
		return reason
	}
	take, padded := c.padder.Pad(c.now, in.batch, own)
	if take > own && c.withDeadline > 0 {
		take = c.paddedInTime(in.batch[:take], own)
	}
	clear(in.batch[take:])
	in.batch = in.batch[:take]
	if take == own {
		return reason
	}
	return padded
}

// nearestLane returns the lane with the number of elements per row that is nearest to that of
// first, among the lanes behind the given one in this order, or among all if that is nil. It
// returns only lanes whose items may share a batch with first, an item of the lane host, and
// whose next item has at most the given number of rows.
func (c *Core) nearestLane(host, after *lane, first *Item, room int) *lane {
	var next *lane
	for _, l := range c.lanes {
		if l == host || l == after || l.items == 0 || l.key.instance != host.key.instance {
			continue
		}
		if it := l.first(); it.PadGroup != first.PadGroup || it.Rows > room {
			continue
		}
		if (after == nil || nearer(after, l, first.Elements)) && (next == nil || nearer(l, next, first.Elements)) {
			next = l
		}
	}
	return next
}

// nearer reports whether the number of elements of lane a is nearer to the given one than
// that of lane b, as a ratio. Lanes that are equally near are in the order of arrival.
func nearer(a, b *lane, elements int64) bool {
	x, y := a.first(), b.first()
	if x.Elements == y.Elements {
		return runsBefore(x, y)
	}
	// max/min of x below max/min of y, without a division.
	l := float64(max(x.Elements, elements)) * float64(min(y.Elements, elements))
	r := float64(max(y.Elements, elements)) * float64(min(x.Elements, elements))
	if l == r {
		return x.Elements < y.Elements
	}
	return l < r
}

// paddedInTime returns how many of the items can share a batch without making one of them
// late, if each of those from the given one on has another shape. Those before it are not
// late without the others.
func (c *Core) paddedInTime(items []*Item, host int) int {
	size, giveUp := Size{}, Never
	for i, it := range items {
		size.Rows += it.Rows
		size.Elements = max(size.Elements, it.Elements)
		giveUp = min(giveUp, c.giveUpAt(it))
		if i >= host && giveUp != Never && giveUp <= c.now+c.cfg.Predictor.Predict(size, c.running+1) {
			return i
		}
	}
	return len(items)
}

// padsWith reports whether requests of two shapes are expected to share a batch.
func (c *Core) padsWith(a, b *Item) bool {
	return c.batches < c.paddedUntil && a.PadGroup != 0 && a.PadGroup == b.PadGroup
}
