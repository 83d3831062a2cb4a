package main

import (
	"cmp"
	"math"
	"runtime/metrics"

	"github.com/shoal-serving/shoal/internal/calibrate"
	"github.com/shoal-serving/shoal/internal/machine"
	"github.com/shoal-serving/shoal/internal/repository"
)

// demand returns the options of mode demand.
func (o *serveOptions) demand(store *calibrate.Store) repository.DemandOptions {
	return repository.DemandOptions{Memory: o.modelBytes(), Loads: o.loadThreads, Waiting: o.maxQueue, Resident: residentMemory, Store: store}
}

// modelBytes returns the memory for models in mode demand.
func (o *serveOptions) modelBytes() int64 {
	if o.modelMemory > 0 {
		return int64(o.modelMemory)
	}
	return cmp.Or(machine.ReadMemory(machine.Root()).Limit/2, math.MaxInt64) // unknown: no limit
}

// residentMemory returns the memory of the process and its workers, without that of Go.
func residentMemory() int64 {
	used := []metrics.Sample{{Name: "/memory/classes/total:bytes"}, {Name: "/memory/classes/heap/released:bytes"}}
	metrics.Read(used)
	return machine.Anonymous(machine.Root()) - int64(used[0].Value.Uint64()-used[1].Value.Uint64())
}
