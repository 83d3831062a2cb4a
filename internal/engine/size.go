package engine

import (
	"github.com/shoal-serving/shoal/internal/infer"
	"github.com/shoal-serving/shoal/internal/machine"
)

// A Sizer is an engine that can estimate the memory of a model before loading it.
type Sizer interface {
	// Size returns the approximate peak memory of loading a version, in bytes. It reads
	// little more than the sizes of files.
	Size(src Source) (int64, error)
}

// Room returns an error if a model that needs the given number of bytes does not fit into
// memory. If the memory is unknown, every model fits.
//
// Without this check the kernel would kill the server with all its models.
func Room(need int64, memory machine.Memory) error {
	if memory.Limit == 0 || need <= memory.Free {
		return nil
	}
	whose, more := "machine", "run it on a larger one"
	if memory.Contained {
		whose, more = "container", "raise the container's limit"
	}
	return infer.Errorf(infer.Unavailable, "the model needs about %d MiB of memory, and of the %s's %d MiB only %d MiB are free: %s, or unload another model",
		machine.Mebibytes(need), whose, memory.Limit>>20, memory.Free>>20, more)
}
