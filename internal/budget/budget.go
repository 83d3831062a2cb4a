// Package budget bounds the memory that requests hold together.
//
// Limits on one request do not bound their sum: many clients with allowed requests can
// exhaust a machine. A request is charged before memory is allocated for it, and until its
// response has been sent. The package only counts: it never waits, and callers reject what
// does not fit.
package budget

import "sync"

// A Budget is a number of bytes that charges share. A single key, such as a model, gets at
// most half of it, so that the requests of one model leave room for those of others. Its
// methods may be called concurrently. A nil Budget has no limit.
type Budget struct {
	// Refused, if not nil, is called whenever a charge does not fit. It must be set before the
	// budget is used.
	Refused func()

	total int64

	mu       sync.Mutex // guards the following
	used     int64
	peak     int64
	rejected uint64
	byKey    map[string]int64 // has no entries of 0, because clients choose keys
}

// New returns a budget of the given number of bytes.
func New(total int64) *Budget { return &Budget{total: total, byKey: map[string]int64{}} }

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
}

// Open returns a charge of no bytes for a key. The caller must call [Charge.Close].
func (b *Budget) Open(key string) Charge { return Charge{budget: b, key: key} }

// Grow adds bytes to the charge, and reports whether they fit. If not, the charge is
// unchanged.
func (c *Charge) Grow(bytes int64) bool {
	b := c.budget
	if b == nil || bytes <= 0 {
		return true
	}
	b.mu.Lock()
	if bytes > b.total-b.used || bytes > b.total/2-b.byKey[c.key] {
		b.rejected++
		b.mu.Unlock()
		if b.Refused != nil {
			b.Refused()
		}
		return false
	}
	b.used += bytes
	b.peak = max(b.peak, b.used)
	b.byKey[c.key] += bytes
	c.bytes += bytes
	b.mu.Unlock()
	return true
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
	b := c.budget
	if b == nil || c.bytes == 0 {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.shrink(c, c.bytes)
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
