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
	bytes := int64(o.modelMemory)
	if bytes == 0 {
		bytes = cmp.Or(machine.ReadMemory(machine.Root()).Limit/2, math.MaxInt64) // unknown: no limit
	}
	return repository.DemandOptions{Memory: bytes, Loads: o.loadThreads, Waiting: o.maxQueue, Resident: residentMemory, Store: store}
}

// residentMemory returns the memory of the process and its workers, without that of Go.
func residentMemory() int64 {
	used := []metrics.Sample{{Name: "/memory/classes/total:bytes"}, {Name: "/memory/classes/heap/released:bytes"}}
	metrics.Read(used)
	return machine.Anonymous(machine.Root()) - int64(used[0].Value.Uint64()-used[1].Value.Uint64())
}
