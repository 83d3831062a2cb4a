package automatic

// A rule is a reason to do otherwise than greedy.
type rule = uint8

const (
	none      rule = iota
	gather         // hold for clients that were just answered
	burst          // hold for requests that come close together
	pace           // hold so that several instances do not start all at once
	share          // hold since the device is shared with a batch that ends soon
	cut            // run less than all
	ruleCount      // how many there are
)

var ruleNames = [ruleCount]string{"none", "gather", "burst", "pace", "share", "cut"}

const (
	blockBatches    = 32 // batches that are summed up together
	blockCount      = 8  // sums that are kept: 256 batches
	minBlocks       = 4  // sums that it takes to judge a rule
	maxLoss         = 0.01
	firstOffBatches = 256 // batches for which a rule is switched off the first time; each time after that twice as many
	maxDoublings    = 10  // times that it doubles
	replayBatches   = 3   // batches that are still replayed after the one that was held
)

// A ledger says what each rule has cost against greedy. When a rule does otherwise,
// a replay begins: the same requests are given to a greedy server that exists only
// here, and when both are done, or some batches later, it says who would have been
// answered sooner. Both sides take as long as the curve says, so that noise is on
// neither.
type ledger struct {
	total    [blockCount]float64 // time that requests took, in all
	accounts [ruleCount]account
	current  int // the block that is written to
	inBlock  int // batches in it
	full     int // blocks that were written
	batch    uint64

	replay replay
}

// An account is what one rule has cost and brought.
type account struct {
	cost, gain [blockCount]float64
	lifetime   [2]float64 // cost and gain from the start, for those who watch
	offUntil   uint64     // the batch from which on it is tried again
	stops      uint64
	doublings  int
	uses       uint64
}

// on reports whether a rule may be used.
func (l *ledger) enabled(r rule) bool { return l.accounts[r].offUntil <= l.batch }

// took takes in a batch that ran, and for how long its requests were there.
func (l *ledger) batchEnded(all float64) {
	l.batch++
	l.total[l.current] += all
	if l.inBlock++; l.inBlock < blockBatches {
		return
	}
	l.judge()
	l.inBlock = 0
	l.full = min(l.full+1, blockCount)
	l.current = (l.current + 1) % blockCount
	l.total[l.current] = 0
	for r := range l.accounts {
		l.accounts[r].cost[l.current], l.accounts[r].gain[l.current] = 0, 0
	}
}

// judge switches off what has cost more than it may.
func (l *ledger) judge() {
	if l.full+1 < minBlocks {
		return
	}
	total := 0.0
	for _, t := range l.total {
		total += t
	}
	for r := range l.accounts {
		a := &l.accounts[r]
		cost, gain := a.sums()
		switch {
		case cost-gain > maxLoss*total:
			a.offUntil = l.batch + firstOffBatches<<a.doublings
			a.doublings = min(a.doublings+1, maxDoublings)
			a.stops++
			a.cost, a.gain = [blockCount]float64{}, [blockCount]float64{}
		case gain > cost && a.doublings > 0 && l.current == 0:
			a.doublings-- // it has paid for a while
		}
	}
}

// restart strikes out what rules seem to have cost while the model had another speed
// than was known: greedy had the old one.
func (l *ledger) restart() {
	l.replay.rule = none
	for r := range l.accounts {
		a := &l.accounts[r]
		a.cost, a.gain, a.offUntil = [blockCount]float64{}, [blockCount]float64{}, 0
	}
}

// enter takes in by how much requests were answered later than greedy's, or sooner.
func (a *account) add(later float64, block int) {
	if later > 0 {
		a.cost[block] += later
		a.lifetime[0] += later
	} else {
		a.gain[block] -= later
		a.lifetime[1] -= later
	}
}

func (a *account) sums() (cost, gain float64) {
	for i := range a.cost {
		cost += a.cost[i]
		gain += a.gain[i]
	}
	return cost, gain
}
