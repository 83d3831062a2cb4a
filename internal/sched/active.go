package sched

import "sync/atomic"

// ActiveBatches counts the batches that run on a device, of all models that share it,
// and decides which of them are exclusive. It implements [batching.Active], so that the
// decision is made once, when the core takes a batch; the core passes it to the policy,
// and the worker to the engine.
type ActiveBatches struct {
	running    atomic.Int64
	overlapped atomic.Bool // two have run at once since a batch last began on an idle device
}

// Begin counts a batch that begins, and reports whether it is exclusive. One that
// begins on an idle device is, unless batches have overlapped since the last that did:
// under load a batch begins alone now and then, when the next is held for more
// requests, and the next begins a moment later. An exclusive batch keeps its threads
// when another begins beside it, so there are too many threads only once, as load
// sets in.
func (a *ActiveBatches) Begin() (exclusive bool) {
	if a.running.Add(1) > 1 {
		a.overlapped.Store(true)
		return false
	}
	return !a.overlapped.Swap(false)
}

// End counts a batch that has ended.
func (a *ActiveBatches) End() { a.running.Add(-1) }
