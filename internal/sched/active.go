package sched

import "sync/atomic"

// activeBatches counts the running batches of all models that share a device, and decides
// which of them are exclusive. It implements [batching.ActiveBatches]: the core asks once,
// when it forms a batch, and passes the decision to the policy; the worker passes it to
// the engine. Its methods may be called concurrently.
type activeBatches struct {
	running    atomic.Int64
	overlapped atomic.Bool // batches have overlapped since one last began on an idle device
}

// Begin counts a batch that begins, and reports whether it is exclusive. A batch that
// begins on an idle device is exclusive, unless batches have overlapped since the last
// one that did. The exception is for load: then the device is idle now and then only
// because the next batch waits for more requests, and begins a moment later. An exclusive
// batch keeps its threads when another batch begins, so the threads outnumber the cores
// only once, when load sets in.
func (a *activeBatches) Begin() (exclusive bool) {
	if a.running.Add(1) > 1 {
		a.overlapped.Store(true)
		return false
	}
	return !a.overlapped.Swap(false)
}

// End counts a batch that has ended.
func (a *activeBatches) End() { a.running.Add(-1) }
