package automatic

// behind is how many rows come after those that wait, until nobody waits any more:
// whoever is delayed delays them, too. It is measured and not calculated from the
// rate, since a burst that is over soon and a load near capacity have the same rate
// for a while.
type busyPeriod struct {
	// Since nobody waited: batches, rows that they took, and sums over the rows that
	// waited at the begin of each.
	batches     int
	took        float64
	x, xx, xSum float64

	// Of such times before, forgotten bit by bit: what came after, and what waited.
	after, waited float64
}

const (
	busyDecay      = 1 - 1.0/256 // with each batch
	maxBusyBatches = 1024        // batches; a queue that stands for longer is taken to have ended
)

// began takes in a batch of so many rows, of x that waited.
func (b *busyPeriod) began(x, rows float64) {
	b.x += x
	b.xx += x * x
	b.xSum += x * (b.took + x)
	b.took += rows
	b.batches++
	b.after *= busyDecay
	b.waited *= busyDecay
}

// ended takes in that a batch is done while so many rows wait.
func (b *busyPeriod) ended(rows float64) {
	if rows > 0 && b.batches < maxBusyBatches {
		return
	}
	b.after += (b.took+rows)*b.x - b.xSum
	b.waited += b.xx
	*b = busyPeriod{after: b.after, waited: b.waited}
}

// of returns how many rows are to be expected behind the x that wait now. The queue
// that stands is not over: what came behind it so far is the least that will have,
// so it counts where that is more than queues had before.
func (b *busyPeriod) expectedAfter(x float64) float64 {
	if b.waited == 0 {
		return maxBusyBatches * x
	}
	before := b.after / b.waited
	now := (b.after + (b.took+x)*b.x - b.xSum) / (b.waited + b.xx)
	return max(before, now) * x
}
