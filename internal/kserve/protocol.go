package kserve

import (
	"math"
	"strings"
	"time"

	"github.com/shoal-serving/shoal/internal/infer"
)

// ServerName is what a server calls itself in its metadata.
const ServerName = "shoal"

// Extensions are the parts of the protocol beyond its core that are served, in
// Triton's order.
var Extensions = []string{
	"model_repository", "model_repository(unload_dependents)", "schedule_policy", "model_configuration", "binary_tensor_data", "statistics",
}

// JSONLengthHeader is the HTTP header that says how many bytes at the start of
// a body are JSON. Binary tensor data follows them.
const JSONLengthHeader = "Inference-Header-Content-Length"

// DefaultMaxBytes bounds the body of an HTTP request, and what its tensors take
// in memory, unless something else is set.
const DefaultMaxBytes = 64 << 20

// ValidVersion reports whether a client may ask for a version so: by its
// number, or by "" for the one that the model's policy serves.
func ValidVersion(version string) bool {
	return strings.Trim(version, "0123456789") == ""
}

// Microseconds returns the time that a client gave as a number of microseconds.
// A number that is too large stands for the longest time there is.
func Microseconds(n uint64) time.Duration {
	return time.Duration(min(n, math.MaxInt64/uint64(time.Microsecond))) * time.Microsecond
}

// NoRegion answers a client that keeps a tensor in shared memory: there is no
// such region, because none can be registered.
func NoRegion(region string) error {
	return infer.Errorf(infer.NotFound, "Unable to find shared memory region: '%s'", region)
}

// NoClassification answers a client that wants the classes of an output.
func NoClassification(output string) error {
	return infer.Errorf(infer.Unsupported, "output '%s' asks for classification, which is not supported", output)
}
