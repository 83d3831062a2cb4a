package kserve

import (
	"fmt"
	"math"
	"strings"
	"time"

	"github.com/shoal-serving/shoal/internal/infer"
	"github.com/shoal-serving/shoal/internal/modelconfig"
)

// ServerName is what a server calls itself in its metadata.
const ServerName = "shoal"

// Extensions are the parts of the protocol beyond its core that are served, in
// Triton's order.
var Extensions = []string{
	"classification", "model_repository", "model_repository(unload_dependents)", "schedule_policy", "model_configuration",
	"binary_tensor_data", "statistics", "logging",
}

// JSONLengthHeader is the HTTP header that says how many bytes at the start of
// a body are JSON. Binary tensor data follows them.
const JSONLengthHeader = "Inference-Header-Content-Length"

// CheckName returns an error unless a model may be called so. It is the one for
// a model that is not known, which such a model can never be.
func CheckName(model string) error {
	if modelconfig.ValidName(model) {
		return nil
	}
	return Worded(&infer.Error{Code: infer.NotFound, Reason: infer.UnknownModel, Model: fmt.Sprintf("%.128s", model)}, nil)
}

// ValidVersion reports whether a client may ask for a version so: by its number, by a
// label such as 1.0, or by "" for the one that the model's policy serves.
func ValidVersion(version string) bool {
	const digits = 19 // of the largest number that a version has
	if len(version) > digits {
		return false
	}
	for part := range strings.SplitSeq(version, ".") {
		if strings.Trim(part, "0123456789") != "" || part == "" && version != "" {
			return false
		}
	}
	return true
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

// NoRegionStatus answers a client that asks for a region of a kind of shared
// memory.
func NoRegionStatus(kind, region string) error {
	return infer.Errorf(infer.NotFound, "Unable to find %s shared memory region: '%s'", kind, region)
}

// Errors for features of the protocol that are not supported.
var (
	ErrSharedMemory   = infer.Errorf(infer.Unsupported, "Client shared memory is disabled. Send tensors in the request instead.")
	ErrGenerate       = infer.Errorf(infer.Unsupported, "generate is not supported. Send tensors to infer instead.")
	ErrRepositoryName = infer.Errorf(infer.Unsupported, "'repository_name' specification is not supported")
	ErrLogging        = infer.Errorf(infer.Unsupported, "log settings are not served here")
	ErrLogFile        = infer.Errorf(infer.Unsupported, "log file location can not be updated through network protocol") // a client could have any file overwritten
)
