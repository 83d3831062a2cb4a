//go:build cgo

package onnxruntime

import (
	"os"
	"sync"
)

// disableTelemetry disables the library's telemetry, which release 1.30 sends on Linux, too:
// the hardware and the loaded models, with an ID of the machine that it stores among the
// user's files. The API can disable it only after the first report, so this sets an
// environment variable before the library is opened.
var disableTelemetry = sync.OnceValue(func() error { return os.Setenv("ORT_DISABLE_TELEMETRY", "1") })
