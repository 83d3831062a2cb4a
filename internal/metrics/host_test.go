package metrics

import (
	"fmt"
	"testing"
	"testing/fstest"
	"testing/synctest"
	"time"
)

// linux returns the files of a machine with 4 cores and 8 MiB of memory, a quarter of it
// in use, and of a process that has used the given number of ticks.
func linux(user, kernel int) fstest.MapFS {
	file := func(text string) *fstest.MapFile { return &fstest.MapFile{Data: []byte(text)} }
	return fstest.MapFS{
		"proc/self/stat":   file(fmt.Sprintf("7 (a ) b) S 1 7 7 0 -1 4194560 100 0 0 0 %d %d 0 0 20 0 9 0 100 1000 10\n", user, kernel)),
		"proc/self/status": file("Cpus_allowed_list:\t0-3\n"),
		"proc/meminfo":     file("MemTotal: 8192 kB\nMemAvailable: 6144 kB\n"),
	}
}

func TestUtilizationIsOfTheTimeSinceItWasLastAsked(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHost(linux(100, 50))
		for _, tt := range []struct {
			user, kernel int
			want         float64
		}{
			{150, 100, 0.25}, // 1 s of the 4 s of four cores
			{150, 100, 0},
			{250, 400, 1},
			{350, 800, 1}, // ticks are coarse
		} {
			time.Sleep(time.Second)
			h.root = linux(tt.user, tt.kernel)
			if got, ok := h.utilization(); !ok || got != tt.want {
				t.Errorf("after %d and %d ticks: %v, %v, want %v", tt.user, tt.kernel, got, ok, tt.want)
			}
		}
		h.root = fstest.MapFS{}
		time.Sleep(time.Second)
		if got, ok := h.utilization(); ok {
			t.Errorf("without Linux: %v", got)
		}
	})
}
