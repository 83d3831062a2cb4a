package engine

import (
	"github.com/shoal-serving/shoal/internal/infer"
	"github.com/shoal-serving/shoal/internal/machine"
)

// A Sizer is an engine that can tell what a model will take before it is loaded.
type Sizer interface {
	// Size returns about how many bytes of memory loading a version takes, at its
	// peak. It reads little more than the sizes of files.
	Size(src Source) (int64, error)
}

// Room returns an error unless a model that takes need bytes has room in memory.
// Where nothing is known of memory, everything has.
//
// A model that is loaded without room is not refused by the kernel: it ends the
// server, with all the models that are being served.
func Room(need int64, memory machine.Memory) error {
	if memory.Limit == 0 || need <= memory.Free {
		return nil
	}
	whose, more := "machine", "run it on a larger one"
	if memory.Contained {
		whose, more = "container", "raise the container's limit"
	}
	return infer.Errorf(infer.Unavailable, "the model needs about %d MiB of memory, and of the %s's %d MiB only %d MiB are free: %s, or unload another model",
		mebibytes(need), whose, memory.Limit>>20, memory.Free>>20, more)
}

// mebibytes rounds up, so that a need never looks smaller than what it is compared
// with.
func mebibytes(n int64) int64 { return (n + 1<<20 - 1) >> 20 }
