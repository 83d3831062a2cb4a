package kserve

import (
	"fmt"
	"math"
	"strings"
	"time"

	"github.com/shoal-serving/shoal/internal/infer"
	"github.com/shoal-serving/shoal/internal/modelconfig"
)

// ServerName is the name of the server in its metadata, unless the operator chose another.
const ServerName = "shoal"

// Extensions returns the supported extensions of the protocol, in Triton's order.
func Extensions(regions *Regions) []string {
	all := []string{"classification", "model_repository", "model_repository(unload_dependents)", "schedule_policy", "model_configuration"}
	if regions != nil {
		all = append(all, "system_shared_memory")
	}
	return append(all, "binary_tensor_data", "statistics", "logging")
}

// JSONLengthHeader is the HTTP header with the length of the JSON part at the start of a
// body. Binary tensor data follows it.
const JSONLengthHeader = "Inference-Header-Content-Length"

// CheckName returns an error unless model is a valid name. It is the same error as for an
// unknown model, because no model can have that name.
func CheckName(model string) error {
	if modelconfig.ValidName(model) {
		return nil
	}
	return TritonError(&infer.Error{Code: infer.NotFound, Reason: infer.UnknownModel, Model: fmt.Sprintf("%.128s", model)}, nil)
}

// ValidVersion reports whether version is valid in a request: a number, a label such as
// 1.0, or "" for the default version.
func ValidVersion(version string) bool {
	const digits = 19 // of the largest version number
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

// Microseconds converts a client's number of microseconds to a duration. Numbers that are
// too large become the longest duration.
func Microseconds(n uint64) time.Duration {
	return time.Duration(min(n, math.MaxInt64/uint64(time.Microsecond))) * time.Microsecond
}

// Errors for unsupported features of the protocol.
var (
	ErrSharedMemory   = infer.Errorf(infer.Unsupported, "Client shared memory is disabled. Start the server with '--allow-client-shm=true' to enable.")
	ErrRepositoryName = infer.Errorf(infer.Unsupported, "'repository_name' specification is not supported")
	ErrLogging        = infer.Errorf(infer.Unsupported, "log settings are not served here")
	ErrLogChange      = infer.Errorf(infer.Forbidden, "log settings cannot be changed by clients of this server; start it with --allow-log-changes")
	ErrLogFile        = infer.Errorf(infer.Unsupported, "log file location can not be updated through network protocol") // a client could overwrite any file
)
