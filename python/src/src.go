// Package src embeds the Python package shoal. The workers of Python models have it, in
// the version of their server.
package src

import "embed"

// Files contains the modules of the package, in the directory shoal.
//
//go:embed shoal/*.py
var Files embed.FS
