package onnxruntime

// The preamble declares only: a file that exports to C has it compiled twice.

/*
#include <stdint.h>
*/
import "C"

import (
	"context"
	"log/slog"
	"runtime/cgo"
)

// The library's levels: verbose, info, warning, error, fatal.
var logLevels = [...]slog.Level{slog.LevelDebug, slog.LevelInfo, slog.LevelWarn, slog.LevelError, slog.LevelError}

// shoalLog is called by the library, on any of its threads.
//
//export shoalLog
func shoalLog(handle C.uintptr_t, level C.int, category, location, message *C.char) {
	log, ok := cgo.Handle(handle).Value().(*slog.Logger)
	if !ok || level < 0 || int(level) >= len(logLevels) {
		return
	}
	log.Log(context.Background(), logLevels[level], C.GoString(message),
		"engine", "onnxruntime", "category", C.GoString(category), "at", C.GoString(location))
}
