//go:build cgo

package onnxruntime

import (
	"os"
	"sync"
)

// silence keeps the library from reporting to its makers, which 1.30 does on Linux
// too: what it runs on and which models it loads, with an identifier of the machine
// that it keeps among the user's files. Its API can end that only after the first
// report, so it is told in the environment, before it is opened.
var silence = sync.OnceValue(func() error { return os.Setenv("ORT_DISABLE_TELEMETRY", "1") })
