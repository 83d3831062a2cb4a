package automatic

// busyPeriod estimates how many rows arrive after those that wait now, until the queue is
// empty: a delay now delays all of them. This is measured, and not computed from the
// rate, because a short burst and a load near capacity have the same rate for a while.
type busyPeriod struct {
	// Of the current busy period: the number of batches, the rows that they took, and sums
	// over the rows that waited when each of them began.
	batches     int
	took        float64
	x, xx, xSum float64

	// Of earlier busy periods, with exponential decay: rows that arrived later, and rows
	// that waited.
	after, waited float64
}

const (
	busyDecay      = 1 - 1.0/256 // per batch
	maxBusyBatches = 1024        // a busy period with more batches is split
)

// began records a batch of rows, of the x rows that waited.
func (b *busyPeriod) began(x, rows float64) {
	b.x += x
	b.xx += x * x
	b.xSum += x * (b.took + x)
	b.took += rows
	b.batches++
	b.after *= busyDecay
	b.waited *= busyDecay
}

// ended records the end of a batch while rows wait.
func (b *busyPeriod) ended(rows float64) {
	if rows > 0 && b.batches < maxBusyBatches {
		return
	}
	b.after += (b.took+rows)*b.x - b.xSum
	b.waited += b.xx
	*b = busyPeriod{after: b.after, waited: b.waited}
}

// expectedAfter returns how many rows are expected to arrive after the x that wait now.
// The current busy period has not ended, so the rows that arrived in it so far are a
// lower bound: it counts only if it raises the estimate.
func (b *busyPeriod) expectedAfter(x float64) float64 {
	if b.waited == 0 {
		return maxBusyBatches * x
	}
	before := b.after / b.waited
	now := (b.after + (b.took+x)*b.x - b.xSum) / (b.waited + b.xx)
	return max(before, now) * x
}
