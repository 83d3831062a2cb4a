package automatic

// busyPeriod estimates how many rows arrive after those that wait now, until the queue is
// empty: a delay now delays all of them. This is measured, and not computed from the
// rate, because a short burst and a load near capacity have the same rate for a while.
type busyPeriod struct {
	batches int     // in the current busy period
	took    float64 // rows of these batches

	// Sums over these batches. w is the number of rows that waited when a batch began, and
	// a the number of rows that had arrived in the busy period by then. Each batch counts
	// with the weight w.
	waitingSum     float64 // of w
	waitingSquares float64 // of w²
	arrivedSum     float64 // of w·a

	// Sums over the batches of earlier busy periods, with exponential decay: of w times the
	// rows that arrived later, and of w². Their quotient is the number of later rows for
	// each row that waits.
	after, waited float64
}

const (
	busyDecay      = 1 - 1.0/256 // per batch
	maxBusyBatches = 1024        // a busy period with more batches is split
)

// began records a batch that takes the given rows of the waiting ones.
func (b *busyPeriod) began(waiting, rows float64) {
	b.waitingSum += waiting
	b.waitingSquares += waiting * waiting
	b.arrivedSum += waiting * (b.took + waiting)
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
	b.after += (b.took+rows)*b.waitingSum - b.arrivedSum
	b.waited += b.waitingSquares
	*b = busyPeriod{after: b.after, waited: b.waited}
}

// expectedAfter returns how many rows are expected to arrive after the given waiting ones.
// The current busy period has not ended, so the rows that arrived in it so far are a
// lower bound: it counts only if it raises the estimate.
func (b *busyPeriod) expectedAfter(waiting float64) float64 {
	if b.waited == 0 {
		return maxBusyBatches * waiting
	}
	before := b.after / b.waited
	now := (b.after + (b.took+waiting)*b.waitingSum - b.arrivedSum) / (b.waited + b.waitingSquares)
	return max(before, now) * waiting
}
