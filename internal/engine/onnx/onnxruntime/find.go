package onnxruntime

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// Variable is the environment variable with the path of the library.
const Variable = "SHOAL_ONNXRUNTIME"

// libraryNames are the file names to look for: the soname, and that of the release which
// `make deps` downloads.
var libraryNames = []string{"libonnxruntime.so.1", "libonnxruntime.so.1.30.0"}

// howToInstall says how to get the library, and how to name its path.
const howToInstall = "download ONNX Runtime from github.com/microsoft/onnxruntime/releases, or run `make deps` in Shoal's source tree, " +
	"and set --onnxruntime-library or " + Variable + " to the path of the library"

// Find returns the path of the library: the given path if it is not "", else that in the
// environment [Variable], else the library in the directory of the running program or in
// ../lib relative to it.
func Find(path string) (string, error) {
	if path != "" {
		return existing(path, "the configured path")
	}
	if path = os.Getenv(Variable); path != "" {
		return existing(path, "the value of "+Variable)
	}
	program, err := os.Executable()
	if err != nil {
		return "", fmt.Errorf("cannot find the ONNX Runtime library: %w", err)
	}
	return beside(filepath.Dir(program))
}

func existing(path, reason string) (string, error) {
	if _, err := os.Stat(path); err != nil {
		return "", fmt.Errorf("the ONNX Runtime library is not at %s, which is %s: %w; %s", path, reason, errors.Unwrap(err), howToInstall)
	}
	return path, nil
}

func beside(dir string) (string, error) {
	dirs := []string{dir, filepath.Join(dir, "..", "lib")}
	for _, d := range dirs {
		for _, name := range libraryNames {
			if path := filepath.Join(d, name); exists(path) {
				return path, nil
			}
		}
	}
	return "", fmt.Errorf("the ONNX Runtime library is missing: %s is neither in %s; %s", libraryNames[0], strings.Join(dirs, " nor in "), howToInstall)
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}
