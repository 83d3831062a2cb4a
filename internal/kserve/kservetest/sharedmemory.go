package kservetest

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// RecordedKey is the key of the shared memory in recorded exchanges.
const RecordedKey = "/oracle_shm"

// SharedMemory creates a POSIX shared memory object for a test, and returns its key and its
// file. It skips the test on systems that do not have them as files.
func SharedMemory(t testing.TB, data []byte) (key, file string) {
	t.Helper()
	f, err := os.CreateTemp("/dev/shm", "shoal-test-")
	if os.IsNotExist(err) {
		t.Skip("this system has no /dev/shm")
	}
	if err == nil {
		t.Cleanup(func() { _ = os.Remove(f.Name()) }) // the test may have removed it
		_, err = f.Write(data)
	}
	if err == nil {
		err = f.Close()
	}
	if err != nil {
		t.Fatal(err)
	}
	return "/" + filepath.Base(f.Name()), f.Name()
}

// WithKey runs a block of a script with the shared memory of the given key in place of
// that of the recording.
func WithKey(key string, lines []string, run func([]string) string) string {
	replaced := strings.Split(strings.ReplaceAll(strings.Join(lines, "\n"), RecordedKey, key), "\n")
	return strings.ReplaceAll(run(replaced), key, RecordedKey)
}
