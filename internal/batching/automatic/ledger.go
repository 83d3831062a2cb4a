package automatic

// A rule is a reason to deviate from greedy.
type rule = uint8

const (
	none      rule = iota
	gather         // hold for clients that were just answered and will return
	burst          // hold for further requests of a burst
	pace           // hold so that instances do not start at the same time
	share          // hold because a batch on the same device ends soon
	cut            // run fewer requests than possible
	ruleCount      // number of rules
)

var ruleNames = [ruleCount]string{"none", "gather", "burst", "pace", "share", "cut"}

const (
	blockBatches    = 32   // batches per block
	blockCount      = 8    // blocks that are kept: 256 batches
	minBlocks       = 4    // blocks before a rule is judged
	maxLoss         = 0.01 // share of all latency that a rule may cost before it is disabled
	firstOffBatches = 256  // batches for which a rule is disabled the first time; doubles each time
	maxDoublings    = 5    // limit of the doubling
	replayBatches   = 3    // batches that are replayed after the one that was held
)

// A ledger records what each rule has cost compared with greedy. When a rule deviates
// from greedy, a replay begins: a simulated greedy server gets the same requests, and
// when both are done, or some batches later, the completion times are compared. Both
// sides use the times of the curve, so noise favors neither.
type ledger struct {
	total        [blockCount]float64 // sum of the latencies of all requests, by block
	accounts     [ruleCount]account
	current      int    // block that is written to
	inBlock      int    // batches in the current block
	filledBlocks int    // blocks written, up to blockCount
	batch        uint64 // number of batches that have ended

	replay replay
}

// An account is what one rule has cost and gained.
type account struct {
	cost, gain [blockCount]float64
	lifetime   [2]float64 // cost and gain since the start, for Explain
	offUntil   uint64     // the rule is disabled until this batch
	stops      uint64
	doublings  int
	uses       uint64
}

// enabled reports whether a rule may be used.
func (l *ledger) enabled(r rule) bool { return l.accounts[r].offUntil <= l.batch }

// batchEnded records a batch, and the sum of the latencies of its requests.
func (l *ledger) batchEnded(latencies float64) {
	l.batch++
	l.total[l.current] += latencies
	if l.inBlock++; l.inBlock < blockBatches {
		return
	}
	l.judge()
	l.inBlock = 0
	l.filledBlocks = min(l.filledBlocks+1, blockCount)
	l.current = (l.current + 1) % blockCount
	l.total[l.current] = 0
	for r := range l.accounts {
		l.accounts[r].cost[l.current], l.accounts[r].gain[l.current] = 0, 0
	}
}

// judge disables rules that have cost more than maxLoss.
func (l *ledger) judge() {
	if l.filledBlocks+1 < minBlocks {
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
			a.doublings-- // it has paid off for a while
		}
	}
}

// restart discards recent costs after a change of speed: replays used the old speed. Rules
// that are disabled stay disabled, or a speed that changes all the time would enable them
// again and again.
func (l *ledger) restart() {
	l.replay.rule = none
	for r := range l.accounts {
		a := &l.accounts[r]
		a.cost, a.gain = [blockCount]float64{}, [blockCount]float64{}
	}
}

// add records by how much later than with greedy requests were answered; negative if
// sooner.
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
