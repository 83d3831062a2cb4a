// Package budget bounds the memory that requests hold together.
//
// Limits on one request do not bound their sum: many clients with allowed requests can
// exhaust a machine. A request is charged before memory is allocated for it, and until its
// response has been sent. The package only counts: it never waits, and callers reject what
// does not fit.
package budget

import (
	"sync"
	"sync/atomic"
)

// A Budget is a number of bytes that charges share. A single key, such as a model, gets at
// most half of it, so that the requests of one model leave room for those of others. Its
// methods may be called concurrently. A nil Budget has no limit.
type Budget struct {
	// Refused, if not nil, is called whenever a charge does not fit. It must be set before the
	// budget is used.
	Refused func()
	// Exists reports whether requests to a model can be answered; nil means that all can. It must
	// be set before the budget is used.
	Exists func(model string) bool

	total int64

	mu       sync.Mutex // guards the following
	used     int64
	peak     int64
	rejected uint64
	byKey    map[string]int64 // has no entries of 0, because clients choose keys

	// answers has the keys whose last answers were large. Only answers add keys, so that clients
	// do not choose them.
	answers map[string]answers
	large   atomic.Bool // answers is not empty
}

// New returns a budget of the given number of bytes.
func New(total int64) *Budget {
	return &Budget{total: total, byKey: map[string]int64{}, answers: map[string]answers{}}
}

// State is what a budget counts.
type State struct {
	Total, Used, Peak int64 // bytes
	Rejected          uint64
}

// State returns the counts.
func (b *Budget) State() State {
	if b == nil {
		return State{}
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	return State{b.total, b.used, b.peak, b.rejected}
}

// A Charge is what one request holds of a budget. It belongs to one goroutine at a time.
// The zero Charge is one of no budget, and has no limit.
type Charge struct {
	budget *Budget
	key    string
	bytes  int64

	asked    int64 // size of the request; see [Charge.Reserve]
	answer   int64 // part of bytes that is for the answer
	expected bool  // the answers of this key were large
}

// Open returns a charge of no bytes for a key. The caller must call [Charge.Close].
func (b *Budget) Open(key string) Charge { return Charge{budget: b, key: key} }

// Calls is the key of what open calls take besides their messages, on all connections together.
const Calls = "\x00calls"

// unknown is the key of all models that do not exist: clients choose their names, and would get a
// share of the budget with each.
const unknown = "\x00"

// OpenModel is like Open, for a request to a model.
func (b *Budget) OpenModel(model string) Charge {
	if b != nil && b.Exists != nil && !b.Exists(model) {
		model = unknown
	}
	return b.Open(model)
}

// Grow adds bytes to the charge, and reports whether they fit. If not, the charge is
// unchanged.
func (c *Charge) Grow(bytes int64) bool {
	b := c.budget
	if b == nil || bytes <= 0 {
		return true
	}
	b.mu.Lock()
	fits := b.grow(c, bytes)
	b.mu.Unlock()
	return fits || b.refused()
}

// room returns how many bytes a charge for a key can grow by. The caller holds the lock.
func (b *Budget) room(key string) int64 { return min(b.total-b.used, b.total/2-b.byKey[key]) }

// grow adds bytes to a charge, and reports whether they fit. The caller holds the lock.
func (b *Budget) grow(c *Charge, bytes int64) bool {
	// The look at the key can be omitted if all charges together have less than it may.
	if bytes > b.total/2-b.used && bytes > b.room(c.key) {
		b.rejected++
		return false
	}
	b.used += bytes
	b.peak = max(b.peak, b.used)
	b.byKey[c.key] += bytes
	c.bytes += bytes
	return true
}

// refused calls Refused, and returns false. The caller does not hold the lock.
func (b *Budget) refused() bool {
	if b.Refused != nil {
		b.Refused()
	}
	return false
}

// Shrink gives some bytes of the charge back.
func (c *Charge) Shrink(bytes int64) {
	b := c.budget
	if b == nil || bytes <= 0 {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.shrink(c, bytes)
}

// Bytes returns the size of the charge.
func (c *Charge) Bytes() int64 { return c.bytes }

// Close gives all bytes of the charge back.
func (c *Charge) Close() {
	if c.bytes > 0 { // inlined: most charges of a call have none
		c.close()
	}
}

func (c *Charge) close() {
	b := c.budget
	b.mu.Lock()
	b.shrink(c, c.bytes)
	c.answer = 0
	b.mu.Unlock()
}

// shrink gives bytes of a charge back. The caller holds the lock.
func (b *Budget) shrink(c *Charge, bytes int64) {
	bytes = min(bytes, c.bytes)
	b.used -= bytes
	if left := b.byKey[c.key] - bytes; left > 0 {
		b.byKey[c.key] = left
	} else {
		delete(b.byKey, c.key)
	}
	c.bytes -= bytes
}
