package automatic

// A rule is a reason to do otherwise than greedy.
type rule = uint8

const (
	none    rule = iota
	gather       // hold for clients that were just answered
	burst        // hold for requests that come close together
	pace         // hold so that several instances do not start all at once
	share        // hold since the device is shared with a batch that ends soon
	cut          // run less than all
	numbers      // how many there are
)

var ruleNames = [numbers]string{"none", "gather", "burst", "pace", "share", "cut"}

const (
	block    = 32 // batches that are summed up together
	blocks   = 8  // sums that are kept: 256 batches
	judged   = 4  // sums that it takes to judge a rule
	allowed  = 0.01
	firstOff = 256 // batches for which a rule is switched off the first time; each time after that twice as many
	longOff  = 10  // times that it doubles
	follows  = 3   // batches that are still replayed after the one that was held
)

// A ledger says what each rule has cost against greedy. When a rule does otherwise,
// a replay begins: the same requests are given to a greedy server that exists only
// here, and when both are done, or some batches later, it says who would have been
// answered sooner. Both sides take as long as the curve says, so that noise is on
// neither.
type ledger struct {
	total [blocks]float64 // time that requests took, in all
	of    [numbers]account
	at    int // the block that is written to
	n     int // batches in it
	full  int // blocks that were written
	batch uint64

	replay replay
}

// An account is what one rule has cost and brought.
type account struct {
	cost, gain [blocks]float64
	all        [2]float64 // cost and gain from the start, for those who watch
	off        uint64     // the batch from which on it is tried again
	stops      uint64
	doubled    int
	held       uint64
}

// on reports whether a rule may be used.
func (l *ledger) on(r rule) bool { return l.of[r].off <= l.batch }

// took takes in a batch that ran, and for how long its requests were there.
func (l *ledger) took(all float64) {
	l.batch++
	l.total[l.at] += all
	if l.n++; l.n < block {
		return
	}
	l.judge()
	l.n = 0
	l.full = min(l.full+1, blocks)
	l.at = (l.at + 1) % blocks
	l.total[l.at] = 0
	for r := range l.of {
		l.of[r].cost[l.at], l.of[r].gain[l.at] = 0, 0
	}
}

// judge switches off what has cost more than it may.
func (l *ledger) judge() {
	if l.full+1 < judged {
		return
	}
	total := 0.0
	for _, t := range l.total {
		total += t
	}
	for r := range l.of {
		a := &l.of[r]
		cost, gain := a.sums()
		switch {
		case cost-gain > allowed*total:
			a.off = l.batch + firstOff<<a.doubled
			a.doubled = min(a.doubled+1, longOff)
			a.stops++
			a.cost, a.gain = [blocks]float64{}, [blocks]float64{}
		case gain > cost && a.doubled > 0 && l.at == 0:
			a.doubled-- // it has paid for a while
		}
	}
}

// restart strikes out what rules seem to have cost while the model had another speed
// than was known: greedy had the old one.
func (l *ledger) restart() {
	l.replay.rule = none
	for r := range l.of {
		a := &l.of[r]
		a.cost, a.gain, a.off = [blocks]float64{}, [blocks]float64{}, 0
	}
}

// enter takes in by how much requests were answered later than greedy's, or sooner.
func (a *account) enter(later float64, block int) {
	if later > 0 {
		a.cost[block] += later
		a.all[0] += later
	} else {
		a.gain[block] -= later
		a.all[1] -= later
	}
}

func (a *account) sums() (cost, gain float64) {
	for i := range a.cost {
		cost += a.cost[i]
		gain += a.gain[i]
	}
	return cost, gain
}
