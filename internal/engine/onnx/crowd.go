package onnx

import "sync/atomic"

// A crowd is how many batches run, of all models of an engine.
type crowd struct {
	running  atomic.Int64
	together atomic.Bool // two have run at once since one last began alone
}

// begin counts a batch that begins, and reports whether it is a lone one, which may
// have all cores. One that begins alone is not, if there was company since the last
// that did: under load batches begin alone now and then, when clients are waited for,
// and the next one begins a moment later. A lone batch keeps its threads when another
// begins beside it, so that there are too many of them once, as load sets in. A policy
// that learns counts on this rule; see Lone in the options of package automatic.
func (c *crowd) begin() (lone bool) {
	if c.running.Add(1) > 1 {
		c.together.Store(true)
		return false
	}
	return !c.together.Swap(false)
}

func (c *crowd) end() { c.running.Add(-1) }
