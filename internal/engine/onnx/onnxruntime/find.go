package onnxruntime

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// Variable is the environment variable that has the path of the library.
const Variable = "SHOAL_ONNXRUNTIME"

// The names that the library has where it is installed: that which programs are
// linked to, and that of the release which `make deps` brings.
var libraryNames = []string{"libonnxruntime.so.1", "libonnxruntime.so.1.30.0"}

// Find returns the path of the library: the given one, else that in the
// environment, else the one that lies beside the running program or in the
// folder lib next to the program's.
func Find(path string) (string, error) {
	if path != "" {
		return existing(path, "the path that was given")
	}
	if path = os.Getenv(Variable); path != "" {
		return existing(path, "what "+Variable+" says")
	}
	program, err := os.Executable()
	if err != nil {
		return "", fmt.Errorf("the ONNX Runtime library is not found: %w", err)
	}
	return beside(filepath.Dir(program))
}

func existing(path, reason string) (string, error) {
	if _, err := os.Stat(path); err != nil {
		return "", fmt.Errorf("the ONNX Runtime library is not at %s, which is %s; `make deps` brings it to ./lib", path, reason)
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
	return "", fmt.Errorf("the ONNX Runtime library %s is neither in %s; `make deps` brings it to ./lib, and %s or --onnxruntime-library may name another place",
		libraryNames[0], strings.Join(dirs, " nor in "), Variable)
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}
